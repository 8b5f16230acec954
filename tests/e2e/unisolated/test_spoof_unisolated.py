"""Tests of attacks, repairs and routes around the policy without a sandbox. ``make test`` runs a sample of them."""

import pytest

from tests.fakes.attacks import policy
from tests.fakes.attacks.every import EVERY_ATTACK, ONE_OF_EACH_SORT, REPAIRS, cases
from tests.fakes.attacks.model import accept, withstand


@pytest.mark.parametrize("attack", cases(attack for attack in EVERY_ATTACK if attack not in ONE_OF_EACH_SORT))
async def test_an_attack_without_a_sandbox_is_not_resolved(attack):
    await withstand(attack, "none")


@pytest.mark.parametrize("repair", REPAIRS, ids=str)
async def test_an_honest_repair_without_a_sandbox_is_resolved(repair):
    await accept(repair, "none")


@pytest.mark.attack("protected-files")
@pytest.mark.parametrize("route", policy.SHELL)
async def test_protected_changes_by_a_shell_without_a_sandbox_are_not_in_the_patch(route):
    async with policy.open_environment("none") as environment:
        await environment.reset()
        await policy.carries_nothing_protected(environment, policy.SHELL[route])
