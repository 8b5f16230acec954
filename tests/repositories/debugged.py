"""Run of ``dgym run DIR --agent debug_agent`` on a package, as in README, with a model that stops in a test."""

import ast
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes.openai_server import Answer, Call, FakeOpenAI

_SECONDS = 900
_SECONDS_TO_END = 90
_OUTCOMES = ("Resolved", "Unresolved")


def debug(root: Path, work: Path, tests: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Run an episode in which the model sets a breakpoint in a test, continues to it, takes a step and submits.

    Args:
        root: The repository.
        work: An empty directory for results and the log.
        tests: Ids of passing tests. The breakpoint is in the first test that is a plain function or method.
        arguments: Arguments of the package's pytest.

    Returns:
        ``reason``, ``score`` and ``maxScore`` of the episode, ``stop``, true if the program stopped at the breakpoint,
        ``seconds``, and ``message``, not empty if the reason is neither Resolved nor Unresolved.
    """
    found = next(filter(None, (_place(root, test) for test in tests)), None)
    if found is None:
        return {"reason": "not run", "stop": False, "seconds": 0, "message": "no test is a function of a Python file"}
    path, line = found
    script = [
        Call("pdb", {"command": f"b {path}:{line}"}),
        Call("pdb", {"command": "c"}),
        Call("pdb", {"command": "n"}),
        Call("view", {"path": path}),
        Call("submit", {"message": "All tests pass already."}),
    ]
    began = time.monotonic()
    with FakeOpenAI(script=[Answer(calls=(call,)) for call in script]).in_thread() as server:
        model = {"model": "x", "endpoint": server.url, "api_key": "k"}
        (work / "llm.yaml").write_text(json.dumps({"scripted": model}))
        command = [
            *(str(Path(sys.executable).parent / "dgym"), "run", str(root)),
            *("--entrypoint", shlex.join(["python", "-m", "pytest", "-q", *arguments]), "--agent", "debug_agent"),
            *("-p", "agent.model=scripted", "--apply", "--llm-config", "llm.yaml", "--output", "json"),
        ]
        printed = _run(command, work)
    result: dict[str, Any] = {"seconds": round(time.monotonic() - began), "stop": _stopped(work, path, line)}
    try:
        (episode,) = json.loads(printed)["episodes"]
    except (ValueError, KeyError):
        return {**result, "reason": "none", "message": f"dgym run did not end within {_SECONDS} s or printed no result"}
    result |= {name: episode.get(name) for name in ("reason", "score", "maxScore")}
    return {**result, "message": "" if episode["reason"] in _OUTCOMES else str(episode.get("message"))[:200]}


def _run(command: Sequence[str], work: Path) -> str:
    """Run the command and return its standard output. After a timeout SIGTERM lets it stop its sandboxes."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with (work / "run.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=work, env=kept, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            return process.communicate(timeout=_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            return process.communicate(timeout=_SECONDS_TO_END)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]


def _stopped(work: Path, path: str, line: int) -> bool:
    """True if the trajectory has a stop at the line."""
    lines = [text for file in work.rglob("trajectory.jsonl") for text in file.read_text("utf-8").splitlines()]
    frames = [json.loads(text).get("observation", {}).get("frame") or {} for text in lines]
    return any((frame.get("file"), frame.get("line")) == (path, line) for frame in frames)


def _place(root: Path, test: str) -> tuple[str, int] | None:
    """File and line of the first statement of a test. None if the test is not a function of a Python file."""
    path, *names = test.partition("[")[0].split("::")
    if not path.endswith(".py") or not names or not (root / path).is_file():
        return None
    body: list[ast.stmt] = ast.parse((root / path).read_text("utf-8")).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    # A method may be inherited from another class of the file.
    holders = [body] if len(names) == 1 else [node.body for node in sorted(classes, key=lambda c: c.name != names[0])]
    functions = (
        node for holder in holders for node in holder if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    found = next((node for node in functions if node.name == names[-1]), None)
    if found is None:
        return None
    body = found.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return path, body[1 if documented and len(body) > 1 else 0].lineno
