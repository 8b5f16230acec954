"""Test of the recorded session on the page about the debugger: the tools return the same text."""

import re
from pathlib import Path

import dgym
from dgym.benchmarks import load_bundled

PAGE = Path(__file__).parents[3] / "docs" / "debugger.md"
SESSION = re.compile(r"^```text\n(dgym> .*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = re.compile(r"\d+\.\d+s")


def test_the_session_of_the_page():
    (session,) = SESSION.findall(PAGE.read_text("utf-8"))
    calls = [part.partition("\n") for part in session.split("dgym> ")[1:]]
    (task,) = (task for task in load_bundled("mini_nightmare") if task.metadata.name == "rolling-usage")
    with dgym.RepoEnv(task) as env:
        env.reset()
        for call, _, shown in calls:
            text = env.step(call)[0]["text"]
            assert SECONDS.sub("", text.rstrip("\n")) == SECONDS.sub("", shown.rstrip("\n")), call
