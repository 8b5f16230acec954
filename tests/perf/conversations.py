"""Cost of an agent's requests: ``python -m tests.perf.conversations [DGYM]``, with the command of any version.

A scripted model plays 50 steps with debug_agent on each task of mini_nightmare and in a repository of 100 files. Tokens
are counted as characters / 4 of the received tools and messages. The repeated prefix of a request is the text, tools
first, that it has in common with the start of the previous request.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fakes.openai_server import Answer, Call, FakeOpenAI

STEPS = 50
FILES = 100
BENCHMARK = Path(__file__).parents[2] / "dgym" / "benchmarks" / "mini_nightmare"
DGYM = Path(sys.executable).parent / "dgym"


def script(repository: Path) -> list[Answer]:
    """View a file, stop in a function, inspect it, change a line, run the tests, and repeat with the next file."""
    paths = sorted(path for path in repository.rglob("*.py") if "test" not in path.name and path.stat().st_size)
    calls: list[Call] = []
    for path in itertools.cycle(paths):
        name = path.relative_to(repository).as_posix()
        lines = path.read_text("utf-8").splitlines()
        line = next((number for number, text in enumerate(lines, 1) if text.startswith("    return")), 1)
        new = {"path": name, "start": 1, "end": 0, "new_code": f"# looked at {len(calls)}\n"}
        calls += [Call("view", {"path": name}), Call("grep", {"pattern": "def "})]
        calls += [Call("pdb", {"command": command}) for command in (f"b {name}:{line}", "c", "pp locals()", "n", "w")]
        calls += [Call("rewrite", new), Call("eval", {}), Call("listdir", {})]
        if len(calls) >= STEPS - 1:
            break
    reasoning = "I expect to see where the value goes wrong; then I compare it with what should be there."
    return [Answer(text=reasoning, calls=(call,)) for call in [*calls[: STEPS - 1], Call("submit", {})]]


def large_repository(folder: Path) -> None:
    """100 files that call each other, and a test that fails."""
    for number in range(FILES - 1):
        after = f"    from module_{number + 1:02} import total as following\n    value += following(items[1:])\n"
        body = "".join(f"def helper_{each}(value):\n    return value * {each} + {number}\n\n\n" for each in range(15))
        last = "" if number == FILES - 2 else after
        total = f"def total(items):\n    value = items[0] if items else 0\n{last}    return value\n"
        (folder / f"module_{number:02}.py").write_text(body + total)
    (folder / "check.py").write_text("from module_00 import total\nassert total([1, 2, 3]) == 7, total([1, 2, 3])\n")


def measure(dgym: Path, repository: Path, arguments: list[str], scratch: Path) -> dict[str, Any]:
    """Play an episode. Returns tokens, repeated tokens and the time of a step."""
    with FakeOpenAI(script=script(repository)).in_thread() as server:
        (scratch / "llm.json").write_text(json.dumps({"m": {"model": "scripted", "endpoint": server.url}}))
        command = [str(dgym), "run", *arguments, "--agent", "debug_agent", "-p", "agent.model=m", "--sandbox", "none"]
        command += ["--llm-config", str(scratch / "llm.json"), "--results", str(scratch / "results"), "--workers", "1"]
        subprocess.run(command, cwd=scratch, check=False, capture_output=True, stdin=subprocess.DEVNULL)
        requests = [json.dumps([each.body.get("tools"), each.body["messages"]]) for each in server.received]
    (trajectory,) = (scratch / "results").rglob("trajectory.jsonl")
    steps = [json.loads(line) for line in trajectory.read_bytes().splitlines()[1:]]
    own = [
        later["elapsedSeconds"] - step["elapsedSeconds"] - later["observation"].get("durationSeconds", 0.0)
        for step, later in itertools.pairwise(steps)
    ]
    repeated = [_common(*pair) for pair in itertools.pairwise(requests)]
    return {
        "requests": len(requests),
        "tokens": sum(map(len, requests)) // 4,
        "repeated": sum(repeated) // 4,
        "of_the_one_before": [same / (len(each) - 2) for same, each in zip(repeated, requests, strict=False)],
        "of_the_request": [same / len(each) for same, each in zip(repeated, requests[1:], strict=False)],
        "own_milliseconds": 1000 * statistics.median(own),
        "step_seconds": (steps[-1]["elapsedSeconds"] - steps[0]["elapsedSeconds"]) / (len(steps) - 1),
    }


def _common(one: str, other: str) -> int:
    """Length of the common prefix."""
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def main(dgym: Path) -> None:
    """Print a line for each repository."""
    print(f"{'':15}{'requests':>9}{'tokens in':>11}{'repeated':>9}", end="")
    print(f"{'of a request':>21}{'of the one before':>21}{'a step':>9}{'without its tool':>18}")
    rows = []
    for task in [*sorted(path.parent.name for path in BENCHMARK.glob("*/repository")), ""]:
        with tempfile.TemporaryDirectory(prefix="conversations-") as folder:
            scratch = Path(folder)
            if task:
                name = task.replace("_", "-")
                arguments = ["--bundled", "mini_nightmare", "-p", f"set.tasks=[{{name: {name}}}]"]
                rows.append(measure(dgym, BENCHMARK / task / "repository", arguments, scratch))
            else:
                (scratch / "large").mkdir()
                large_repository(scratch / "large")
                rows.append(measure(dgym, scratch / "large", ["large", "--entrypoint", "python check.py"], scratch))
        _print(task or f"{FILES} files", rows[-1:])
        if task and len(rows) == 10:
            _print("ten tasks", rows)


def _print(name: str, rows: list[dict[str, Any]]) -> None:
    """Print a line: sums, the median and the lowest share of repeated tokens, and the mean time of a step."""
    requests, tokens, repeated = (sum(row[key] for row in rows) for key in ("requests", "tokens", "repeated"))
    print(f"{name:15}{requests:9}{tokens:11,}{repeated / tokens:9.1%}", end="")
    for key in ("of_the_request", "of_the_one_before"):
        shares = [share for row in rows for share in row[key]]
        print(f"{statistics.median(shares):12.1%} ≥ {min(shares):6.1%}", end="")
    seconds, own = (statistics.fmean(row[key] for row in rows) for key in ("step_seconds", "own_milliseconds"))
    print(f"{1000 * seconds:6.0f} ms{own:15.1f} ms", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DGYM)
