"""Tests of sandboxes that die during a step, between steps or at the end: the poisoned step and the score."""

import asyncio
import functools
import os
import signal
import textwrap

import pytest

from dgym.errors import SandboxLost
from dgym.sandbox.local import LocalProvider
from dgym.session import SandboxTermination, _journal
from dgym.tools import Tool
from dgym.wire import EndReason
from tests.fakes.attacks import starvation
from tests.integration.session.conftest import PYTEST

REPAIR = "rewrite calc.py 2 <c>    return a + b</c>"


class Trap(Tool):
    """Kill the sandbox from the given use on."""

    uses = 0

    async def use(self, context, path: str, deadly: int = 0) -> str:
        """Write a file.

        Args:
            context: The episode's files.
            path: The file.
            deadly: The use that kills the sandbox, as all after it do.
        """
        type(self).uses += 1
        await context.sandbox.run("true")
        if deadly and self.uses >= deadly:
            os.kill(context.sandbox.main_process, signal.SIGKILL)
        await context.write_bytes(path, b"trapped")
        return "written"


@pytest.fixture
def trap():
    Trap.uses = 0
    return Trap()


async def test_a_replay_that_dies_is_the_second_death(open_episode, trap):
    session = await open_episode(tools=["rewrite", trap])
    await session.step(1, REPAIR)
    await session.step(2, {"tool": "trap", "arguments": {"path": "a.txt", "deadly": 2}})
    last = await session.step(3, {"tool": "trap", "arguments": {"path": "b.txt", "deadly": 2}})
    assert "killed by step 2" in last.text
    assert last.end_reason == EndReason.RESOLVED
    assert "a.txt" not in session.result.patch
    assert session.result.steps == session.steps == 3
    assert session.poisoned == {2, 3}


async def test_a_step_that_ends_its_sandbox_by_a_signal_is_poisoned_and_the_second_is_the_outcome(open_episode):
    session = await open_episode()
    await session.step(1, "bash echo 1 > kept.txt")
    end = "bash kill -TERM 1; kill -TERM $PPID; kill -TERM 2; sleep 60"
    first = await session.step(2, end)
    assert "The sandbox was killed" in first.text
    assert first.end_reason is None
    last = await session.step(3, end)
    assert last.end_reason == EndReason.SANDBOX_KILLED
    assert session.poisoned == {2, 3}
    assert "kept.txt" in session.result.patch
    assert session.result.max_score == 1


class Frail(LocalProvider):
    """A provider whose first ``deaths`` sandboxes die when the agent's changed files are read."""

    deaths = 1

    async def sandbox(self):
        sandbox = await super().sandbox()
        manifest = sandbox.manifest
        baseline = []

        async def dying_manifest(**limits):
            if baseline and self.deaths:
                self.deaths -= 1
                os.kill(sandbox.main_process, signal.SIGKILL)
            baseline.append(True)
            return await manifest(**limits)

        sandbox.manifest = dying_manifest
        return sandbox


async def test_a_death_after_the_last_step_is_scored_by_replay_without_a_poisoned_step(open_episode):
    session = await open_episode(provider=Frail)
    await session.step(1, REPAIR)
    await session.step(2, "bash echo 1 > a.txt")
    last = await session.step(3, "submit")
    assert last.end_reason == EndReason.RESOLVED
    assert "a.txt" in session.result.patch
    assert (session.poisoned, session.result.steps) == (set(), 3)


class Frailer(Frail):
    deaths = 9


async def test_a_sandbox_that_dies_after_every_replay_counts(open_episode):
    session = await open_episode(provider=Frailer)
    await session.step(1, REPAIR)
    last = await session.step(2, "submit")
    assert last.end_reason == EndReason.UNRESOLVED
    assert "nothing was scored: two sandboxes died" in session.result.message


def remembering(opened):
    """A provider class that appends its sandboxes to ``opened``."""

    class Remembering(LocalProvider):
        async def sandbox(self):
            opened.append(await super().sandbox())
            return opened[-1]

    return Remembering


async def test_a_step_sent_to_a_dead_sandbox_runs_in_the_next_and_is_not_poisoned(open_episode):
    opened = []
    session = await open_episode(provider=remembering(opened))
    for seq in (1, 2):
        os.kill(opened[-1].main_process, signal.SIGSTOP)
        step = asyncio.create_task(session.step(seq, f"bash echo {seq} >> steps.txt; cat steps.txt"))
        while not session.step_in_flight:
            await asyncio.sleep(0)
        os.kill(opened[-1].main_process, signal.SIGKILL)
        observation = await step
        assert (observation.ok, observation.text.split()) == (True, ["1", "2"][:seq])
    assert (session.poisoned, len(opened)) == (set(), 3)
    os.kill(opened[-1].main_process, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await session.step(3, "bash true")


async def test_a_step_whose_sandbox_dies_before_its_digest_is_poisoned(open_episode):
    opened = []
    session = await open_episode(provider=remembering(opened))
    sandbox = opened[0]
    digest = sandbox.digest

    async def dying_digest():
        os.kill(sandbox.main_process, signal.SIGKILL)
        return await digest()

    sandbox.digest = dying_digest
    assert (await session.step(1, "bash true")).text.startswith("The sandbox was killed")
    assert session.poisoned == {1}


class SlowToReopen(LocalProvider):
    """A provider that counts the agent's sandboxes. All sandboxes after the first wait for ``go``."""

    def __init__(self, spec):
        super().__init__(spec)
        self.opened = 0
        self.reopening, self.go = asyncio.Event(), asyncio.Event()

    async def sandbox(self):
        self.opened += 1
        if self.opened > 1:
            self.reopening.set()
            await self.go.wait()
        return await super().sandbox()


async def test_an_end_during_a_recovery_awaits_the_one_new_sandbox(open_episode, trap):
    providers = []
    session = await open_episode(
        tools=["rewrite", trap], provider=lambda spec: providers.append(SlowToReopen(spec)) or providers[0]
    )
    await session.step(1, REPAIR)
    await session.patch()  # opens the verifier, so that ``finish`` only waits for the sandbox
    recovering = asyncio.create_task(session.step(2, {"tool": "trap", "arguments": {"path": "a.txt", "deadly": 1}}))
    await providers[0].reopening.wait()
    finishing = asyncio.create_task(session.finish())
    await asyncio.wait([finishing], timeout=0.5)
    providers[0].go.set()
    result = await finishing
    assert (result.resolved, result.steps, providers[0].opened) == (True, 2, 2)
    assert (await recovering).text.startswith("The sandbox was killed")


async def test_a_caller_that_was_cancelled_during_a_recovery_finds_the_death_recorded(open_episode, trap):
    providers = []
    episode = await open_episode(
        tools=["rewrite", "view", trap], provider=lambda spec: providers.append(SlowToReopen(spec)) or providers[0]
    )
    await episode.step(1, REPAIR)
    recovering = asyncio.create_task(episode.step(2, {"tool": "trap", "arguments": {"path": "a.txt", "deadly": 1}}))
    await providers[0].reopening.wait()
    recovering.cancel()
    await asyncio.wait([recovering])
    providers[0].go.set()
    assert "return a + b" in (await episode.step(3, "view calc.py")).text
    death = episode.env.trajectory()[2]
    assert (death.call.tool, Trap.uses) == ("trap", 1)
    assert death.observation.text.startswith("The sandbox was killed")


async def test_setup_commands_do_not_count_against_the_replay(open_episode, trap, monkeypatch):
    monkeypatch.setattr(_journal, "REPLAY_TIMEOUT_SECONDS", 0.01)
    session = await open_episode(tools=[trap], setupCommands=["sleep 0.1"])
    observation = await session.step(1, {"tool": "trap", "arguments": {"path": "a.txt", "deadly": 1}})
    assert "A new sandbox was started" in observation.text
    assert observation.end_reason is None


async def test_a_slow_removal_of_the_sandbox_does_not_change_the_outcome(open_session):
    session = await open_session(termination=SandboxTermination(timeout_seconds=0.0))
    await session.step(1, REPAIR)
    assert (await session.step(2, "submit")).end_reason == EndReason.RESOLVED


async def test_shared_files_are_cleared_between_sandbox_and_verifier(open_session):
    order = []

    class Watched(LocalProvider):
        async def verifier(self):
            verifier = await super().verifier()
            run = verifier.run

            async def recorded(*arguments, **options):
                order.append("run")
                return await run(*arguments, **options)

            verifier.run = recorded
            return verifier

    async def confirmed():
        order.append("ended")
        return True

    async def clear():
        order.append("cleared")
        return ["cleared 3 objects"]

    termination = SandboxTermination(confirmed=confirmed, clear_shared=clear)
    session = await open_session(provider=Watched, termination=termination)
    await session.step(1, REPAIR)
    result = await session.finish()
    assert order[:3] == ["ended", "cleared", "run"]
    assert (result.resolved, "cleared 3 objects" in result.notes) == (True, True)


async def test_shared_files_are_not_cleared_while_the_sandbox_runs(open_session):
    async def confirmed():
        return False

    async def clear():
        raise AssertionError("the verifier is not asked")

    session = await open_session(termination=SandboxTermination(confirmed=confirmed, clear_shared=clear))
    assert (await session.finish()).reason == EndReason.SANDBOX_KILLED


UNISOLATED = functools.partial(LocalProvider, kind="none")


@pytest.mark.attack("starved-runner")
@pytest.mark.parametrize("name", starvation.LIMITS)
async def test_a_runner_without_resources_is_a_death_of_the_sandbox(open_episode, name):
    session = await open_episode(provider=UNISOLATED)
    await session.step(1, REPAIR)
    await session.step(2, starvation.command(name, spared=(1, os.getpid())))
    for seq in (3, 4):
        if session.result is None:
            await session.step(seq, {"tool": "bash", "arguments": {"command": "echo still here"}})
    result = await session.finish()
    assert result.reason in (EndReason.RESOLVED, EndReason.UNRESOLVED, EndReason.SANDBOX_KILLED), result


@pytest.mark.attack("starved-runner")
async def test_tests_that_starve_the_verifiers_runner_get_an_outcome(open_session):
    session = await open_session(provider=UNISOLATED, entrypoint=PYTEST)
    program = starvation.program(*starvation.LIMITS, spared=(1, os.getpid()))
    code = "def add(a, b):\n" + textwrap.indent(program, "    ") + "\n    return 5\n"
    await session.step(1, {"tool": "rewrite", "arguments": {"path": "calc.py", "new_code": code}})
    result = await session.finish()
    assert result.reason in (EndReason.RESOLVED, EndReason.UNRESOLVED), result
