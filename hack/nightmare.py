"""Runs two episodes for each task of mini_nightmare, and writes their table to docs/benchmarks.md.

python -m hack.nightmare            run the episodes and write the table (two minutes)
python -m hack.nightmare --check    exit status 1 if tasks, policies or table have changed; runs nothing
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from dgym.api import DebugTask
from dgym.benchmarks import load_bundled
from dgym.results import EpisodeRow
from dgym.results.report import read_run
from tests.fakes.openai_server import FakeOpenAI

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, MIDDLE, END = (
    "<!-- mini_nightmare: written by hack/nightmare.py, digest ",
    " -->\n",
    "<!-- /mini_nightmare -->\n",
)
AGENTS = {"debug_agent": "debugger", "rewrite_agent": "rewriter"}
HEADINGS = "| task | fault | failing tests | debug_agent | rewrite_agent |\n|---|---|---|---|---|\n"


def main(arguments: list[str]) -> int:
    """Write the table or, with ``--check``, report whether it is out of date. Return the exit status."""
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    found, middle, rest = rest.partition(MIDDLE)
    table, end, after = rest.partition(END)
    if not (begin and middle and end):
        print(f"{PAGE.relative_to(ROOT)}: the marks of the table are missing")
        return 1
    if arguments == ["--check"]:
        if found == digest(table):
            return 0
        print(f"{PAGE.relative_to(ROOT)}: the table of mini_nightmare is out of date: python -m hack.nightmare")
        return 1
    made = HEADINGS + "".join(rows())
    PAGE.write_text(f"{before}{begin}{digest(made)}{middle}{made}{end}{after}", "utf-8")
    return 0


def digest(table: str) -> str:
    """Return a digest of the table and of the files that it depends on."""
    total = hashlib.sha256(table.encode())
    tasks = (ROOT / "dgym" / "benchmarks" / "mini_nightmare").rglob("*")
    for file in sorted([*tasks, ROOT / "tests" / "fakes" / "openai_policies.py"]):
        if file.is_file() and "__pycache__" not in file.parts:
            total.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def rows() -> list[str]:
    """Run the episodes, and return a row for each task."""
    with tempfile.TemporaryDirectory() as directory, FakeOpenAI().in_thread() as server:
        models = Path(directory, "llm.yaml")
        models.write_text(
            json.dumps({name: {"model": name, "endpoint": server.url, "api_key": "k"} for name in AGENTS.values()})
        )
        for agent, model in AGENTS.items():
            subprocess.run(
                [
                    *(Path(sys.executable).with_name("dgym"), "run", "--bundled", "mini_nightmare", "--agent", agent),
                    *("-p", f"agent.model={model}", "--llm-config", models, "--results", directory),
                ],
                check=True,
            )
        records = {(record.task, record.agent): record for record in read_run([Path(directory)]).records}
    return [row(task, *(records[task.metadata.name, agent] for agent in AGENTS)) for task in tasks()]


def tasks() -> list[DebugTask]:
    """Return the tasks of mini_nightmare."""
    return load_bundled("mini_nightmare")


def row(task: DebugTask, debugged: EpisodeRow, rewritten: EpisodeRow) -> str:
    """Return the row of a task. The model ``rewriter`` repairs nothing, so its score is that of the original files."""
    failing = f"{rewritten.max_score - rewritten.score}/{rewritten.max_score}"
    ends = (summary(debugged), summary(rewritten))
    cells = (task.metadata.name, task.metadata.annotations["dgym.dev/bug"], failing, *ends)
    return f"| {' | '.join(cells)} |\n"


def summary(record: EpisodeRow) -> str:
    """Return reason, score, steps and number of pdb calls of an episode."""
    commands = sum(call.tool == "pdb" for call in record.calls)
    parts = [f"{record.reason} {record.score}/{record.max_score}", f"{record.steps} steps"]
    return ", ".join([*parts, f"{commands} pdb"] if commands else parts)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
