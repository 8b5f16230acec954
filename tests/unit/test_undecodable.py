"""Tests of untrusted bytes for which msgspec raises built-in exceptions instead of its own: readers handle both."""

import pytest

from dgym.agents.replay import parse_calls
from dgym.errors import ManifestError
from dgym.results import decode_header, decode_result, read_left_out, read_plan, read_trajectory
from dgym.sandbox import parse_report
from dgym.sidecar._preparation import read_steps
from dgym.ui._trajectories import read_story
from dgym.wire.client import exception
from dgym.wire.http import CallError
from dgym.wire.outcome import decode_termination

NOT_UTF_8 = b'{"schemaVersion": 1, "episode": "\xff", "message": "\xff", "seq": 0, "began": "\xff", "kind": "\xff"}'
TOO_DEEP = b'{"schemaVersion": ' + b"[" * 100_000
STRANGE = pytest.mark.parametrize("line", [NOT_UTF_8, TOO_DEEP], ids=["not UTF-8", "too deep"])


@STRANGE
def test_a_trajectory_is_refused_by_its_line(line, tmp_path):
    path = tmp_path / "trajectory.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(ManifestError, match=r"trajectory\.jsonl:1"):
        read_trajectory(path)
    path.write_bytes(b'{"schemaVersion": 1}\n' + line + b"\n")
    with pytest.raises(ManifestError, match=r"trajectory\.jsonl:2"):
        read_trajectory(path)


@STRANGE
def test_a_page_shows_the_problem(line):
    story = read_story(b'{"schemaVersion": 1, "episode": "calc"}\n' + line + b"\n")
    assert story.header.episode == "calc"
    assert story.problem.startswith("Line 2 of the trajectory is not a step")
    assert decode_header(line).episode == ""


@STRANGE
def test_stored_files_are_as_good_as_missing(line, tmp_path):
    (tmp_path / ".dgym-left-out.json").write_bytes(line)
    assert read_left_out(tmp_path) == {}
    assert decode_result(line) is None
    assert read_plan(line) is None
    assert decode_termination(line) is None


@STRANGE
def test_recorded_calls_and_steps_are_refused(line):
    with pytest.raises(ManifestError, match=r"calls\.jsonl:1"):
        parse_calls(line.decode("utf-8", "surrogateescape") + "\n", source="calls.jsonl")
    with pytest.raises(CallError, match="line 1 is not a step"):
        read_steps([line])


@STRANGE
def test_a_report_is_marked(line):
    report = parse_report(b"token " + line + b"\n", "token")
    assert report is not None
    assert report.tampering == ["the report has a record that cannot be read"]


@STRANGE
def test_an_answer_of_no_sidecar_is_an_error_of_the_infrastructure(line):
    error, again = exception(502, line)
    assert "502" in str(error)
    assert isinstance(again, bool)
