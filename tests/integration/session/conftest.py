"""Fixtures: sessions and episodes in local sandboxes, as ``AsyncRepoEnv`` makes them, with access to their parts."""

import contextlib

import msgspec
import pytest

from dgym.api import DebugTask
from dgym.env import AsyncRepoEnv, Opening, open_source
from dgym.env._local import Opened
from dgym.sandbox.local import LocalProvider
from dgym.session import EpisodeLimits, SandboxTermination, Session
from dgym.tools import load_tools
from tests.support.calc import BUGGY

FILES = {
    "calc.py": BUGGY,
    "test_calc.py": "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n",
    "tool.sh": "#!/bin/sh\necho hello\n",
    "old.txt": "going away\n",
}
# Two runs of pytest would take half of a test's time, so only tests of pytest's protection or reports run pytest.
ENTRYPOINT = "python -c 'import test_calc; test_calc.test_add()'"
PYTEST = "python -m pytest -q"
TOOLS = ("bash", "eval", "rewrite", "view", "pdb", "submit")


def make_task(files=None, **spec):
    source = {"files": [{"path": path, "content": text} for path, text in (files or FILES).items()]}
    spec = {"source": source, "entrypoint": ENTRYPOINT, **spec}
    return msgspec.convert({"metadata": {"name": "calc"}, "spec": spec}, DebugTask)


@pytest.fixture
async def open_session():
    """``await open_session(limits=…, **spec)``: a session after its reset, closed at the end of the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(
            *,
            limits=None,
            reset=True,
            tools=TOOLS,
            provider=LocalProvider,
            trajectory=None,
            termination=None,
            **spec,
        ):
            task = make_task(**spec)
            session = Session(
                task,
                provider=provider(await Opening().sandbox_spec(task)),
                tools=load_tools(tools),
                source=await open_source(task),
                limits=limits or EpisodeLimits(),
                trajectory=trajectory,
                termination=termination or SandboxTermination(),
            )
            stack.push_async_callback(session.close)
            if reset:
                await session.reset()
            return session

        yield open_one


class Opens(Opening, frozen=True, kw_only=True):
    """Opens sandboxes with the provider class ``provider``."""

    provider: type[LocalProvider]

    async def open(self, task):
        spec = await self.sandbox_spec(task)
        return Opened(provider=self.provider(spec), source=await open_source(task), programs=spec.python)


class Played:
    """An episode of an environment. If its sandbox dies, it continues in another session."""

    def __init__(self, env):
        self.env = env

    async def step(self, seq, action):
        await self.env.step(action)
        step = self.env.trajectory()[-1]
        assert step.seq == seq
        return step.observation

    async def finish(self):
        return await self.env.finish()

    def __getattr__(self, name):
        return getattr(self.env._episode, name)


@pytest.fixture
async def open_episode():
    """``await open_episode(provider=…, **spec)``: an episode after its reset, closed at the end of the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(*, tools=TOOLS, provider=LocalProvider, **spec):
            env = AsyncRepoEnv(make_task(**spec), tools=tools)
            env._local._opening = Opens(provider=provider)
            await stack.enter_async_context(env)
            await env.reset()
            return Played(env)

        yield open_one
