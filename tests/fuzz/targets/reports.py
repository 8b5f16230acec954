"""Target for reports of test runs, which the code under test may write, from their bytes to the score."""

import msgspec
from hypothesis import strategies as st

from dgym.sandbox import EntrypointResult, Mode, RunResult, parse_report
from dgym.session.scoring._score import expected_tests, named_tests, score_run
from dgym.wire.outcome import decode_termination
from tests.fuzz.engine import Target
from tests.fuzz.mutation import json_values, mutated

_TOKEN = "00112233445566778899aabbccddeeff"
_RECORDS = [
    {"kind": "form", "form": "pytest"},
    {"kind": "start", "pytest": "8"},
    {"kind": "collected", "ids": ["t.py::a", "t.py::b"]},
    {"kind": "collection_error", "id": "u.py"},
    {"kind": "test", "id": "t.py::a", "outcome": "passed"},
    {"kind": "test", "id": "t.py::b", "outcome": "xfailed"},
    {"kind": "canary", "outcome": "failed"},
    {"kind": "tampering", "why": "x"},
    {"kind": "overruled", "id": "t.py::a", "outcome": "passed"},
    {"kind": "reading", "parser": "p", "why": ""},
    {"kind": "end", "status": 0},
    {"kind": "status", "status": 1, "abnormal": ""},
]


def _line(record: object) -> bytes:
    try:
        return f"{_TOKEN} ".encode() + msgspec.json.encode(record) + b"\n"
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return f"{_TOKEN} [1e999]\n".encode()


def _changed(record: dict[str, object], place: int, value: object) -> bytes:
    return _line({**record, sorted(record)[place % len(record)]: value})


_LINES = st.sampled_from([_line(record) for record in _RECORDS]) | st.builds(
    _changed, st.sampled_from(_RECORDS), st.integers(0, 9), json_values()
)
_DATA = st.lists(_LINES, max_size=12).map(b"".join) | mutated([b"".join(map(_line, _RECORDS))], [_TOKEN.encode()])
_INPUTS = st.tuples(
    _DATA, st.sampled_from(list(Mode)), st.none() | st.integers(-9, 256), st.sampled_from(("exit", "timeout"))
)


def check(value: tuple[bytes, Mode, int | None, str]) -> None:
    """Read and score a report, and encode the score."""
    data, mode, status, ended_by = value
    report = parse_report(data, _TOKEN)
    run = RunResult(exit_status=status, ended_by=ended_by, output=data)  # type: ignore[arg-type]
    result = EntrypointResult(run=run, report=report)
    named = named_tests(["t.py::a", "t.py::b"])
    for expected in (expected_tests(result), named):
        scored = score_run(mode, result, expected, 10.0)
        msgspec.json.encode(scored)
    decode_termination(data)


TARGET = Target("reports", _INPUTS, check)
