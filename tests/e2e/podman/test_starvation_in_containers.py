"""Tests of a container whose agent takes the runner's resources: the episode still has an outcome."""

import pytest

from dgym.wire import EndReason
from tests.fakes.attacks import policy, starvation

pytestmark = pytest.mark.attack("starved-runner")
OUTCOMES = (EndReason.RESOLVED, EndReason.UNRESOLVED, EndReason.SANDBOX_KILLED)


@pytest.mark.parametrize("name", starvation.LIMITS)
async def test_a_runner_without_resources_is_a_death_of_the_sandbox(engine, name):
    async with policy.open_environment("container", engine=engine.flavor) as environment:
        await environment.reset()
        for call in (starvation.command(name), "bash echo still here", "bash echo still here"):
            if environment.result is None:
                await environment.step(call)
        assert (await environment.finish()).reason in OUTCOMES
