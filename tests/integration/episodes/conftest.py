import sys

import msgspec
import pytest

from dgym.api import AgentSpec, DebugTask, EpisodeSpec
from dgym.env import Opening
from dgym.episodes import Job, RunOptions
from tests.support.bare_python import bare_python

AGENTS = '''
import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from dgym.agents import BaseAgent
from dgym.results import Record
from dgym.tools import Tool


class Blocking(BaseAgent):
    """Blocks the event loop of its process for good."""

    name = "blocking"

    async def run(self, env, context):
        await env.reset()
        while True:
            time.sleep(3600)


class Talking(BaseAgent):
    """Logs its episode's name between calls, and waits until every episode has come this far."""

    name = "talking"
    arrived = 0

    async def run(self, env, context):
        await env.reset()
        Talking.arrived += 1
        while Talking.arrived < context.parameters["together"]:
            await asyncio.sleep(0.01)
        for _ in range(3):
            logging.getLogger("dgym.mine").info("I am %s", context.parameters["me"])
            await env.step("listdir")
        return None


class Neighbour(BaseAgent):
    """Writes down its process, and waits for good in the first one."""

    name = "neighbour"

    async def run(self, env, context):
        await env.reset()
        marks = Path(context.parameters["marks"])
        with marks.open("a") as file:
            print(os.getpid(), file=file)
        while len(marks.read_text().split()) == 1:
            await asyncio.sleep(0.01)
        return None


class Killing(BaseAgent):
    """Ends its process as soon as all of its neighbours are in one."""

    name = "killing"

    async def run(self, env, context):
        await env.reset()
        while not all(Path(marks).exists() for marks in context.parameters["neighbours"]):
            await asyncio.sleep(0.01)
        self.end()

    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class BlockingAll(Killing):
    """Blocks the event loop of its neighbours."""

    name = "blocking_all"

    def end(self):
        time.sleep(3600)


class DyingOnceStored(BaseAgent):
    """Its process dies between the storing of the result and the report of it."""

    name = "dying_once_stored"

    async def run(self, env, context):
        await env.reset()
        finish = Record.finish

        async def finish_and_die(record, result):
            await finish(record, result)
            os.kill(os.getpid(), signal.SIGKILL)

        Record.finish = finish_and_die


class Sleeping(Tool):
    """A tool of a user's."""

    async def use(self, context):
        return "slept"
'''


@pytest.fixture
def agents(tmp_path, monkeypatch):
    """Make agents for tests importable, here and in worker processes. Returns the name of their module."""
    name = f"agents_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def new_job(tmp_path):
    def make(episode, agent, *, parameters=None, **spec):
        task = {
            "entrypoint": "python check.py",
            "source": {"files": [{"path": "check.py", "content": "assert False\n"}]},
        }
        return Job(
            namespace="local",
            episode=episode,
            sample=0,
            task=msgspec.convert({"metadata": {"name": "calc"}, "spec": task}, DebugTask),
            task_digest="t",
            agent=AgentSpec(name=agent, parameters=parameters or {}),
            spec=msgspec.convert(spec, EpisodeSpec),
            digest=f"digest-{episode}",
            manifest="x.yaml",
            base=str(tmp_path),
            options=RunOptions(
                opening=Opening(sandbox="none", python=bare_python()), results=str(tmp_path / "results")
            ),
        )

    return make
