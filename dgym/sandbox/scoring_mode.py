"""How a task counts: decided by the task alone, alike for a look during the episode and for the verdict."""

from collections.abc import Sequence
from enum import StrEnum

from dgym.sandbox.entrypoint import mentions_pytest


class Mode(StrEnum):
    """How a task counts."""

    NAMED_TESTS = "named tests"
    WHOLE_SUITE = "whole suite"
    EXIT_STATUS = "exit status"


def choose_mode(entrypoint: str, named: Sequence[str], parser: str) -> Mode:
    """How a task with this entrypoint, these named tests and this ``parser`` counts."""
    if parser == "exitStatus":
        return Mode.EXIT_STATUS
    if named:
        return Mode.NAMED_TESTS
    if parser == "pytest" or mentions_pytest(entrypoint):
        return Mode.WHOLE_SUITE
    return Mode.EXIT_STATUS
