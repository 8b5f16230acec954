"""Tests of the policy for read-only and hidden files in containers, by every route of attack."""

import pytest

from tests.fakes.attacks import policy

pytestmark = pytest.mark.attack("protected-files")


@pytest.fixture
async def environment(engine):
    async with policy.open_environment("container", engine=engine.flavor) as opened:
        await opened.reset()
        yield opened


@pytest.mark.parametrize("route", policy.SHELL)
async def test_protected_changes_by_a_shell_in_a_container_are_not_in_the_patch(environment, route):
    await policy.carries_nothing_protected(environment, policy.SHELL[route])


@pytest.mark.parametrize(
    "holds",
    [
        policy.file_tools_refuse_every_spelling,
        policy.file_tools_refuse_links,
        policy.program_and_debugger_write_in_vain,
    ],
    ids=lambda check: check.__name__,
)
async def test_the_tools_in_a_container_keep_the_policy(environment, holds):
    await holds(environment)
