import os
import signal
import subprocess
import time

import psutil
import pytest

from tests.support.bare_python import bare_python
from tests.support.command import DGYM, dgym

DEADLINE_SECONDS = 90

EPISODE = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata:
  name: calc
spec:
  instructions: add() is wrong.
  entrypoint: python check.py
  source:
    files:
      - {path: calc.py, content: "def add(a, b):\\n    total = a\\n    total -= b\\n    return total\\n"}
      - {path: check.py, content: "from calc import add\\nassert add(2, 3) == 5, add(2, 3)\\n"}
  solution: |
    --- a/calc.py
    +++ b/calc.py
    @@ -1,4 +1,4 @@
     def add(a, b):
         total = a
    -    total -= b
    +    total += b
         return total
---
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata:
  name: calc
spec:
  tasks: [{name: calc}]
  samples: SAMPLES
  template:
    agent:
      name: replay
      parameters: {trajectory: walk.jsonl}
"""
WALK = """\
{"tool": "pdb", "arguments": {"command": "b calc.py:3"}}
{"tool": "pdb", "arguments": {"command": "c"}}
{"tool": "pdb", "arguments": {"command": "p a, b, total"}}
{"tool": "rewrite", "arguments": {"path": "calc.py", "start": 3, "end": 3, "new_code": "    total += b"}}
{"tool": "eval", "arguments": {}}
{"tool": "submit", "arguments": {}}
"""
AGENTS = '''
import asyncio
import os
import signal
from pathlib import Path

from dgym.agents import BaseAgent

MARKS = Path(__file__).parent / "marks"


class Waiting(BaseAgent):
    """Makes a step, says which process it is in, and waits until it is released."""

    name = "waiting"

    async def run(self, env, context):
        await env.reset()
        await env.step("listdir")
        MARKS.mkdir(exist_ok=True)
        (MARKS / f"{os.getpid()}.partial").touch()
        (MARKS / f"{os.getpid()}.partial").rename(MARKS / f"{os.getpid()}.pid")
        while not (MARKS / "release").exists():
            await asyncio.sleep(0.05)
        return None


class Dying(BaseAgent):
    """Takes its process with it."""

    name = "dying"

    async def run(self, env, context):
        await env.reset()
        os.kill(os.getpid(), signal.SIGKILL)


class Deaf(BaseAgent):
    """Solves the task and does not notice that the episode is over."""

    name = "deaf"

    async def run(self, env, context):
        await env.reset()
        await env.step("rewrite calc.py 3 <c>    total += b</c>")
        await env.step("submit")
        await env.step("listdir")


class Broken(BaseAgent):
    """Has a bug of its own."""

    name = "broken"

    async def run(self, env, context):
        await env.reset()
        raise RuntimeError("this agent is broken")
'''


class Folder:
    """A directory with a manifest, and methods that run dgym in it."""

    def __init__(self, path):
        self.path = path
        self.manifest()
        (path / "walk.jsonl").write_text(WALK)
        (path / "agents_for_tests.py").write_text(AGENTS)

    def manifest(self, *, samples=1, edit=lambda text: text):
        (self.path / "x.yaml").write_text(edit(EPISODE.replace("SAMPLES", str(samples))))

    @property
    def marks(self):
        return self.path / "marks"

    def arguments(self, *arguments):
        return [str(DGYM), "run", "x.yaml", "--sandbox", "none", "--python", bare_python(), *arguments]

    def run(self, *arguments, stdin=""):
        return self.dgym(*self.arguments(*arguments)[1:], stdin=stdin)

    def dgym(self, *arguments, stdin=""):
        return dgym(*arguments, cwd=self.path, stdin=stdin)

    def run_process(self, *arguments, stdin=""):
        """Like ``run``, but in a separate process, for the debugger and for threads."""
        return subprocess.run(
            self.arguments(*arguments),
            cwd=self.path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def start(self, *arguments):
        """Start the run in a new session, as the foreground process group of a terminal."""
        return subprocess.Popen(
            self.arguments(*arguments),
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def attempts(self):
        return sorted(path.parent for path in (self.path / "results").glob("*/*/*/*/trajectory.jsonl"))

    def waiting(self, number):
        """Process ids of the waiting agents, as soon as there are ``number`` of them."""

        def found():
            return self.marks.is_dir() and [int(path.stem) for path in self.marks.glob("*.pid")]

        wait_until(lambda: len(found() or ()) >= number, f"{number} waiting agents")
        return found()

    def release(self):
        (self.marks / "release").touch()


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"timed out waiting for {what}")
        time.sleep(0.02)


@pytest.fixture
def until():
    return wait_until


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def _serves_this_process(process):
    """True for the fork server and the resource tracker, which multiprocessing starts once and later tests share."""
    return process.ppid() == os.getpid() and "from multiprocessing." in " ".join(process.cmdline())


@pytest.fixture
def no_process_survives(tmp_path):
    """Check at the end that no process with the test's directory as working directory is left."""
    yield

    def survivors():
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid == os.getpid() or _serves_this_process(process):
                    continue
                if str(tmp_path) in (process.cwd(), process.environ().get("PWD", "")):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    wait_until(lambda: not survivors(), "processes to end")


def interrupt(process):
    os.killpg(process.pid, signal.SIGINT)
