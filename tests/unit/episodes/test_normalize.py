import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.episodes import normalize


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<Cart object at 0x7f3a2c1b4d90>", "<Cart object at 0x55d0c0ffee12>"),
        ("===== 3 passed in 0.02s =====", "==== 3 passed in 10.51s ===="),
        ("3 passed in 0.01s", "3 passed in 0.33s"),
        ("== 1 failed in 65.31s (0:01:05) ==", "=== 1 failed in 62.02s (0:01:02) ==="),
        ("started at 2025-01-02T03:04:05Z", "started at 2026-11-21 13:14:15.678"),
        ("pid 4711 exited", "pid 12 exited"),
        ("/tmp/dgym-a1b2c3/workspace/calc.py:3", "/tmp/dgym-zzz/workspace/calc.py:3"),
        ('File "/tmp/dgym-a1b2c3/calc.py"', 'File "/workspace/calc.py"'),
        ("/tmp/pytest-of-root/pytest-3/test_a0", "/tmp/pytest-of-me/pytest-12/test_a0"),
    ],
)
def test_texts_that_differ_only_by_run_are_equal_after_normalization(before, after):
    assert normalize(before) == normalize(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("calc.py:12", "calc.py:13"),
        ("2 passed in 0.1s", "3 passed in 0.1s"),
        ("total = 0.1", "total = 0.2"),
        ("0x10", "0x11"),
        ("5 items", "6 items"),
    ],
)
def test_relevant_differences_remain_after_normalization(before, after):
    assert normalize(before) != normalize(after)


@pytest.mark.timeout(60)  # A regular expression that backtracks would take hours.
@pytest.mark.attack("slow-text")
@pytest.mark.parametrize("text", ["/" * 65_536, "/dgym-" * 10_000, "= DURATION " * 6_000, "=" * 65_536, "0x" * 30_000])
def test_text_takes_time_in_proportion_to_its_length(text):
    normalize(text)


@given(st.text())
def test_normalizing_is_idempotent(text):
    assert normalize(normalize(text)) == normalize(text)
