"""Every manifest under examples/ runs as it stands; each task fails untouched and is solved by its solution."""

from pathlib import Path

import pytest

from dgym.api import DebugTask, Episode, EpisodeSet, expand, find_task, load
from dgym.env import AsyncRepoEnv
from dgym.wire import EndReason

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def tasks_of(path):
    """The tasks of all episodes of a manifest, each once."""
    resources = load(path)
    tasks = [resource for resource in resources if isinstance(resource, DebugTask)]
    found = {}
    for resource in resources:
        if isinstance(resource, Episode):
            found[resource.metadata.name] = find_task(resource, tasks)
        elif isinstance(resource, EpisodeSet):
            found |= {one.task.metadata.name: one.task for one in expand(resource, tasks)}
    assert found
    return list(found.values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
async def test_examples_are_broken_and_can_be_solved(path):
    for task in tasks_of(path):
        async with AsyncRepoEnv(task) as env:
            await env.reset()
            untouched = await env.finish()
            await env.reset()
            await env.apply_solution()
            solved = await env.finish()
        assert untouched.reason is EndReason.UNRESOLVED
        assert solved.reason is EndReason.RESOLVED, solved.message
        assert solved.score == solved.max_score > untouched.score
