"""Tests of programs that attack their own sandbox, on a laptop. tests/e2e/cluster has the test for a cluster."""

import asyncio

import msgspec
import pytest

from dgym import AsyncRepoEnv
from dgym.api import DebugTask
from tests.e2e.programs import EXPECTED, PROGRAMS, Outcome, calls, task

pytestmark = pytest.mark.attack("killed-sandbox")


@pytest.mark.parametrize("sandbox", ["bubblewrap", "container"])
async def test_a_program_that_attacks_its_sandbox_has_the_outcome_that_it_has_in_a_cluster(engine, sandbox):
    described = msgspec.convert({"metadata": {"name": "attacked"}, "spec": task()}, DebugTask)

    async def run(program):
        async with AsyncRepoEnv(described, sandbox=sandbox, engine=engine.flavor) as env:
            await env.reset()
            for call in calls(program):
                await env.step(call)
            shown = [(step.observation.exit_status, step.observation.text[-300:]) for step in env.trajectory()]
            result = env.result
            outcome = Outcome(result.reason, result.score, result.max_score, result.steps, result.integrity.clean)
            return program, outcome, (result.message, result.notes[:3], shown[2])

    ends = await asyncio.gather(*map(run, PROGRAMS))
    assert {program: outcome for program, outcome, _ in ends} == EXPECTED, ends
