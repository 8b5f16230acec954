"""Tests of docs/wire.md: it has every error code and every field of the termination message."""

from pathlib import Path

from dgym.wire.http import ErrorCode
from dgym.wire.outcome import TerminationMessage

PAGE = (Path(__file__).parents[3] / "docs" / "wire.md").read_text("utf-8")


def test_the_page_has_every_error_code_with_status_and_exception():
    for code in ErrorCode:
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{code}` | {code.status} |"))
        # A client retries after this error, and raises SandboxLost when it stops trying.
        raised = "SandboxLost" if code.retryable else code.exception.__name__
        assert f"`{raised}`" in row.split("|")[-2]


def test_the_page_has_every_field_of_the_termination_message():
    for name in TerminationMessage.__struct_encode_fields__:
        assert f"`{name}`" in PAGE
