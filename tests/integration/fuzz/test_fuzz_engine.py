"""Tests of the fuzzing engine: it finds crashes, hangs and memory growth."""

import pytest
from hypothesis import strategies as st

from tests.fuzz.engine import Target, fuzz
from tests.fuzz.mutation import changed, json_values, mutated
from tests.fuzz.targets import NAMES, load


def test_a_correct_target_has_no_findings():
    outcome = fuzz(Target("quiet", st.binary(), len), 0, 0, batch=50)
    assert outcome.failure == ""
    assert outcome.inputs >= 100
    assert outcome.ended_bytes > 0


def test_a_crash_is_reported_with_its_input():
    def crash(data):
        if 7 in data:
            raise KeyError("seven")

    outcome = fuzz(Target("crash", st.binary(min_size=1), crash), 60, 0, batch=50)
    assert "KeyError: 'seven'" in outcome.failure
    assert "input: b'\\x07'" in outcome.failure


def test_a_hang_is_reported():
    def hang(number):
        while number:
            pass

    outcome = fuzz(Target("hang", st.sampled_from((0, 1)), hang), 60, 0, hang=0.05)
    assert "no end within 0.05 s: 1" in outcome.failure


def test_growth_is_reported():
    kept = []

    def grow(_number):
        kept.append(bytearray(b"x" * 1024**2))

    outcome = fuzz(Target("growth", st.integers(), grow), 0, 0, batch=40, growth=16 * 1024**2)
    assert "the process grew by" in outcome.failure


def test_changes_follow_from_their_seed():
    assert changed(b"abcdef", 5) == changed(b"abcdef", 5)
    assert len({changed(b"abcdef", seed) for seed in range(50)}) > 25


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_every_target_takes_some_inputs(name):
    outcome = fuzz(load(name), 0, 1, batch=10)
    assert outcome.failure == ""
    assert outcome.inputs == 20


def test_strategies_give_values():
    st.tuples(json_values(), mutated([b"a"])).validate()
