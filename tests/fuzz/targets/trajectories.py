"""Target for untrusted stored results, as ``dgym ui``, ``replay``, ``report`` and ``results --story`` read them."""

import asyncio
import contextlib
import io
import tempfile
from pathlib import Path

import msgspec
from hypothesis import strategies as st

from dgym.agents.replay import parse_calls
from dgym.cli.results import show_story
from dgym.errors import DgymError, ManifestError
from dgym.results import Attempt, DirectoryLibrary, read_left_out, read_trajectory
from dgym.results.report import make_report, read_run
from dgym.sidecar._preparation import read_steps
from dgym.ui._listing import Query, sides_of
from dgym.ui._pages import Links, Pages
from dgym.wire.http import CallError
from tests.fuzz.engine import Target
from tests.fuzz.mutation import json_values, mutated

_HEADER = {
    "schemaVersion": 1,
    "namespace": "local",
    "episode": "calc",
    "task": "calc",
    "digest": "d",
    "sample": 0,
    "manifest": "bundled:x",
    "agent": {"name": "replay", "maxSteps": 5, "model": "m"},
    "tools": ["bash", {"name": "pdb"}],
    "startTime": "2026-01-01T00:00:00Z",
}
_POINT = {"number": 1, "file": "a.py", "line": 3, "condition": "x"}
_OBSERVATION = {
    "text": "one\x1b[31m",
    "tool": "bash",
    "durationSeconds": 0.5,
    "exitStatus": 0,
    "diff": "+a",
    "notes": ["n"],
    "frame": {"file": "a.py", "line": 1, "function": "f"},
    "breakpoints": [_POINT],
    "focusFile": "a.py",
    "score": {"score": 1, "maxScore": 2},
}
_EXCHANGE = {"text": "t", "reasoning": "r", "usage": {"inputTokens": 1, "outputTokens": 2}, "secondsModel": 0.1}
_RESET = {"seq": 0, "call": None, "observation": {"text": "begin"}, "elapsedSeconds": 0.1}
_STEP = {
    "seq": 1,
    "call": {"tool": "bash", "arguments": {"command": "ls"}},
    "observation": _OBSERVATION,
    "elapsedSeconds": 1.0,
    "exchanges": [_EXCHANGE],
}
_RESULT = {
    "resolved": True,
    "reason": "Resolved",
    "score": 1,
    "maxScore": 1,
    "steps": 1,
    "inputTokens": 5,
    "outputTokens": 6,
    "tests": {"t.py::a": "passed"},
    "durationSeconds": 2.0,
    "patch": "--- a\n",
    "notes": ["n"],
    "message": "m",
    "integrity": {"clean": False, "seen": [{"sign": "TestsChanged", "detail": "t.py"}]},
    "namespace": "local",
    "episode": "calc",
    "task": "calc",
    "agent": "replay",
    "model": "m",
    "sample": 0,
    "arm": "a",
    "wallSeconds": 3.0,
    "price": "0.1",
    "attempt": 1,
    "digest": "d",
    "startTime": "2026-01-01T00:00:00Z",
    "taskLabels": {"repository": "r"},
}
_PLAN = {"began": 1.0, "sets": {"s": ["local/calc/d"]}}
_LEFT_OUT = {"s": {"Flaky": 1}}


def _json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return b"[1e999]"


def _changed(encoded: bytes, path: list[int], value: object) -> bytes:
    """The example with another value at some place."""
    copy = msgspec.json.decode(encoded)
    place = copy
    for step in path[1:]:
        inner = [each for each in place.values() if isinstance(each, dict) and each]
        place = inner[step % len(inner)] if inner else place
    place[sorted(place)[path[0] % len(place)]] = value
    return _json(copy)


_PATHS = st.lists(st.integers(0, 20), min_size=1, max_size=4)


def _files(example: dict[str, object]) -> st.SearchStrategy[bytes]:
    encoded = _json(example)
    return st.just(encoded) | st.builds(_changed, st.just(encoded), _PATHS, json_values()) | mutated([encoded])


_LINES = st.tuples(_files(_HEADER), st.just(_json(_RESET)), st.lists(_files(_STEP), max_size=3))
_TRAJECTORIES = _LINES.map(lambda parts: b"\n".join([parts[0], parts[1], *parts[2], b""])) | mutated(
    [b"\n".join(map(_json, (_HEADER, _RESET, _STEP, _STEP))) + b"\n"]
)
_INPUTS = st.fixed_dictionaries(
    {
        "local/calc/d/1/trajectory.jsonl": _TRAJECTORIES,
        "local/calc/e/1/trajectory.jsonl": _TRAJECTORIES,
    },
    optional={
        "local/calc/d/1/result.json": _files(_RESULT),
        "local/calc/e/1/result.json": st.just(_json(_RESULT)),
        "local/calc/d/1/patch.diff": mutated([b"--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n"]),
        "local/calc/d/1/episode.log": st.binary(max_size=50),
        ".dgym-plan-0123456789abcdef.json": _files(_PLAN),
        ".dgym-left-out.json": _files(_LEFT_OUT),
    },
)


def check(files: dict[str, bytes]) -> None:
    """Read a results directory with all of its readers."""
    with tempfile.TemporaryDirectory(prefix="dgym-fuzz-") as name:
        root = Path(name)
        for path, data in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        asyncio.run(_show(DirectoryLibrary(root)))
        with contextlib.suppress(DgymError):
            msgspec.json.encode(make_report(read_run([root])))
        read_left_out(root)
        for path in root.rglob("trajectory.jsonl"):
            with contextlib.suppress(ManifestError), contextlib.redirect_stdout(io.StringIO()):
                read_trajectory(path)
                show_story(Attempt(path.parent))
        data = files["local/calc/d/1/trajectory.jsonl"]
        with contextlib.suppress(ManifestError):
            parse_calls(data.decode("utf-8", "surrogateescape"), source="calls.jsonl")
        with contextlib.suppress(CallError):
            read_steps(io.BytesIO(data))


async def _show(library: DirectoryLibrary) -> None:
    """Render every kind of page and encode it."""
    await library.refresh()
    pages = Pages(library, Links())
    texts = [pages.home(), pages.episodes(Query.parse({}))]
    entries = list(library.entries.values())
    sides = sides_of(entries)
    texts += [await pages.episode(entry, {}) for entry in entries]
    texts.append(await pages.pair(entries[0], entries[-1]))
    if len(sides) > 1:
        texts.append(pages.compare(*sides[:2]))
    for text in texts:
        text.encode("utf-8", "replace")


TARGET = Target("trajectories", _INPUTS, check)
