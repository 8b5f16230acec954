"""Tests of an episode that continues in another session with the steps that an earlier session recorded."""

import os
import signal

import pytest

from dgym.errors import SandboxLost
from dgym.sandbox.local import LocalProvider
from dgym.session import EpisodeLimits, RecordedTrajectory, _journal, _outcome, death_observation
from dgym.tools import Tool
from dgym.wire import EndReason, Step, ToolCall
from dgym.wire.http import Usage
from tests.integration.session.conftest import PYTEST

REPAIR = "rewrite calc.py 2 <c>    return a + b</c>"
KILLED = ToolCall(tool="bash", arguments={"command": "echo killed > killed.txt"})


class OneSandbox(LocalProvider):
    """A provider that opens the agent's sandbox only once, as a pod does."""

    opened = False

    async def sandbox(self):
        if self.opened:
            raise SandboxLost("this pod has one sandbox, and it was used")
        self.opened = True
        return await super().sandbox()


async def take(open_session, *actions, **options):
    """Take steps in a new session, close it, and return its trajectory."""
    session = await open_session(**options)
    for seq, action in enumerate(actions, start=1):
        await session.step(seq, action)
    steps = session.trajectory()
    await session.close()
    return steps


def trajectory(steps, *poisoned):
    return RecordedTrajectory(steps=tuple(steps), poisoned=poisoned)


def killed(seq):
    return Step(seq=seq, call=KILLED, observation=death_observation(KILLED, "OOMKilled"))


async def test_the_steps_of_an_earlier_attempt_are_made_again_and_not_counted_twice(open_session):
    actions = (REPAIR, "bash echo 1 > note.txt; cd /tmp", "view calc.py", "pdb b calc.py:2")
    steps = await take(open_session, *actions, entrypoint=PYTEST)
    session = await open_session(
        reset=False,
        provider=OneSandbox,
        trajectory=trajectory(steps),
        limits=EpisodeLimits(max_rewrites=3),
        entrypoint=PYTEST,
    )
    last = await session.reset(key="k")
    assert last == steps[-1].observation
    assert session.trajectory() == steps
    assert (session.steps, session.rewrites, session.next_seq) == (4, 1, 5)
    assert [point.line for point in session.state.breakpoints] == [2]
    assert session.state.focus_file == "calc.py"
    assert (await session.step(5, "bash pwd")).text.strip().endswith("/tmp")
    await session.step(6, "submit")
    assert session.result.resolved
    assert "note.txt" in session.result.patch
    assert (session.result.steps, session.result.notes) == (6, ())


async def test_repeated_resets_replay_once(open_session):
    steps = await take(open_session, "bash echo once >> counter")
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps))
    assert await session.reset(key="k") == await session.reset(key="k")
    assert (await session.step(2, "bash cat counter")).text.count("once") == 1


async def test_a_poisoned_step_is_left_out_and_the_episode_continues(open_session):
    steps = [*await take(open_session, REPAIR), killed(2)]
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps, 2))
    last = await session.reset(key="k")
    assert last.text.startswith("The sandbox was killed (OOMKilled)")
    assert last.end_reason is None
    assert (session.poisoned, session.own_poisoned_steps) == ({2}, ())
    await session.step(3, "submit")
    assert session.result.resolved
    assert "killed.txt" not in session.result.patch


async def test_two_poisoned_steps_end_the_episode_with_what_can_be_replayed_scored(open_session):
    steps = [*await take(open_session, "bash echo 1 > kept.txt"), killed(2)]
    steps += [Step(seq=3, call=KILLED, observation=steps[2].observation)]
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps, 2, 3))
    session.record_usage(Usage(input_tokens=5, output_tokens=7))
    last = await session.reset(key="k")
    assert last.end_reason == EndReason.SANDBOX_KILLED
    assert session.trajectory()[-1].observation == last
    result = session.result
    assert (result.reason, result.resolved, result.score, result.max_score) == (EndReason.SANDBOX_KILLED, False, 0, 1)
    assert "kept.txt" in result.patch
    assert "killed.txt" not in result.patch
    assert (result.steps, result.input_tokens, result.output_tokens) == (3, 5, 7)
    assert await session.reset(key="k") == last


async def test_two_poisoned_steps_of_a_repaired_episode_leave_it_resolved(open_session):
    steps = [*await take(open_session, REPAIR), killed(2), killed(3)]
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps, 2, 3))
    assert (await session.reset(key="k")).end_reason == EndReason.RESOLVED
    assert session.result.resolved


async def test_limits_count_the_steps_and_rewrites_of_the_earlier_attempt(open_session):
    steps = await take(open_session, REPAIR, "bash true")
    session = await open_session(
        reset=False, provider=OneSandbox, trajectory=trajectory(steps), limits=EpisodeLimits(max_steps=3)
    )
    await session.reset(key="k")
    assert (await session.step(3, "bash true")).end_reason == EndReason.RESOLVED
    again = await open_session(
        reset=False, provider=OneSandbox, trajectory=trajectory(steps), limits=EpisodeLimits(max_rewrites=2)
    )
    await again.reset(key="k")
    assert (await again.step(3, "rewrite calc.py 2 <c>    return b + a</c>")).end_reason == EndReason.RESOLVED


async def test_a_divergent_replay_is_noted_and_continues(open_session):
    steps = await take(open_session, "bash test ! -e /tmp/there && echo 1 > one.txt", "bash test -e one.txt")
    steps[1] = Step(
        seq=1, call=ToolCall(tool="bash", arguments={"command": "exit 3"}), observation=steps[1].observation
    )
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps))
    await session.reset(key="k")
    noted = (await session.step(3, "bash true")).notes
    assert noted == (
        "the replay of step 1 (bash) diverged: exit status 3 instead of 0, different files were left",
        "the replay of step 2 (bash) diverged: exit status 1 instead of 0",
    )
    assert (await session.step(4, "bash true")).notes == ()
    assert (await session.finish()).notes[-2:] == noted


async def test_a_replay_that_leaves_other_files_is_noted_at_the_first_step_that_does(open_session):
    setup = {"setupCommands": ["cat /proc/sys/kernel/random/uuid > built.txt"]}
    steps = await take(
        open_session, REPAIR, "bash cat /proc/sys/kernel/random/uuid > id.txt", "bash echo 1 > one.txt", **setup
    )
    digests = [step.observation.workspace_digest for step in steps[1:]]
    assert all(digests)
    assert len(set(digests)) == 3
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps), **setup)
    await session.reset(key="k")
    assert (await session.step(4, "bash true")).notes == (
        "the replay of step 2 (bash) diverged: different files were left",
    )


class Bomb(Tool):
    """Kill the sandbox when it is armed."""

    armed = False

    async def use(self, context, path: str) -> str:
        """Write a file, or kill the sandbox.

        Args:
            context: The episode's files.
            path: The file.
        """
        await context.sandbox.run("true")
        if type(self).armed:
            os.kill(context.sandbox.main_process, signal.SIGKILL)
        await context.write_bytes(path, b"bomb")
        return "written"


@pytest.fixture
def bomb():
    Bomb.armed = False
    return Bomb()


def use(seq, path):
    call = ToolCall(tool="bomb", arguments={"path": path})
    return Step(seq=seq, call=call, observation=death_observation(call, "OOMKilled"))


async def test_a_step_whose_replay_kills_the_sandbox_is_poisoned(open_session, bomb):
    steps = await take(open_session, {"tool": "bomb", "arguments": {"path": "a.txt"}}, tools=[bomb])
    Bomb.armed = True
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps), tools=[bomb])
    with pytest.raises(SandboxLost, match="during the replay of step 1"):
        await session.reset(key="k")
    assert (session.poisoned, session.own_poisoned_steps) == ({1}, (1,))
    assert session.ending.is_set()


async def test_a_third_death_counts_without_a_score(open_session, bomb):
    steps = await take(open_session, {"tool": "bomb", "arguments": {"path": "a.txt"}}, tools=[bomb])
    steps += [use(2, "b.txt"), use(3, "c.txt")]
    Bomb.armed = True
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps, 2, 3), tools=[bomb])
    assert (await session.reset(key="k")).end_reason == EndReason.SANDBOX_KILLED
    result = session.result
    assert (result.reason, result.score, result.max_score) == (EndReason.SANDBOX_KILLED, 0, 0)
    assert "nothing was scored: two sandboxes died" in result.message


async def test_a_replay_timeout_after_a_poisoned_step_counts_as_the_second_death(open_session, monkeypatch):
    steps = [*await take(open_session, REPAIR, "bash true"), killed(3)]
    monkeypatch.setattr(_journal, "REPLAY_TIMEOUT_SECONDS", 0.5)
    slow = ToolCall(tool="bash", arguments={"command": "sleep 600"})
    steps[2] = Step(seq=2, call=slow, observation=steps[2].observation)
    session = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps, 3))
    assert (await session.reset(key="k")).end_reason == EndReason.RESOLVED
    assert session.poisoned == {2, 3}
    innocent = await open_session(reset=False, provider=OneSandbox, trajectory=trajectory(steps[:3]))
    with pytest.raises(SandboxLost, match="took longer"):
        await innocent.reset(key="k")


async def test_many_changed_bytes_count(open_session, monkeypatch):
    monkeypatch.setattr(_outcome, "MAXIMUM_BYTES", 60_000)
    session = await open_session()
    await session.step(1, "bash for i in {1..300}; do printf '%10000s' > f$i; done")
    await session.step(2, "submit")
    assert (session.result.reason, session.result.max_score) == (EndReason.UNRESOLVED, 1)
    assert sum("too large to copy" in note for note in session.result.notes) == 199
    assert session.result.notes[-1] == "and 95 more notes"
