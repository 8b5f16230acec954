"""Tests of messages of the debugged program, which may forge them."""

import pytest

from dgym.runner.debugger.wire import checked

HELLO = {"type": "hello", "kind": "module", "target": "pytest", "argv": ["-q"], "orig_argv": ["python", "-m", "pytest"]}


def test_a_program_introduces_itself():
    assert checked(HELLO) == {**HELLO, "is_pytest": False, "notices": []}


@pytest.mark.parametrize(
    "message",
    [
        {"type": "other"},
        {"type": "stop", "cut": float("inf")},
        {"type": "stop", "breakpoints": [{"number": 1}]},
        {**HELLO, "orig_argv": []},
        {**HELLO, "orig_argv": [1]},
        {**HELLO, "orig_argv": {"python": 1}},
        {**HELLO, "notices": 3},
        {**HELLO, "notices": [{}]},
    ],
)
def test_a_forged_message_is_an_error_of_one_kind(message):
    with pytest.raises(ValueError):
        checked(message)
