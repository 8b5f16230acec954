"""Tests of attacks of each sort with bubblewrap. ``make test-all`` runs all attacks, and some without isolation.

No attack may be resolved without a mark. ``make e2e`` runs all attacks in containers and without isolation.
"""

import pytest

from tests.fakes.attacks import processes
from tests.fakes.attacks.every import ATTACKS, ONE_OF_EACH_SORT, REPAIRS, cases
from tests.fakes.attacks.model import accept, check_not_resolved, play, withstand

# Each attack that is not in this set is of the same sort as an attack in it.
OFTEN = {
    "conftest at each level",
    "every configuration",
    "tests behind a link",
    "stale bytecode",
    "environment of the shell",
    "daemon that waits for the verifier",
    "trace function",
    "writes a module",
    "comparison under a false name",
    "thread in true && python check.py",
}


@pytest.mark.parametrize("attack", cases(attack for attack in ONE_OF_EACH_SORT if attack.name in OFTEN))
async def test_an_attack_of_each_sort_is_not_resolved(attack, bubblewrap):
    """This test does not prove that the attack deceives a plain run. ``make test-all`` proves it for each attack."""
    check_not_resolved(attack, (await play(attack.changes, bubblewrap, **attack.task)).result)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", cases(ATTACKS))
async def test_an_attack_is_not_resolved(attack, bubblewrap):
    await withstand(attack, bubblewrap)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", cases(processes.ATTACKS))
async def test_an_attack_across_processes_is_not_resolved(attack, bubblewrap):
    if bubblewrap == "none" and attack is not processes.DAEMON_OF_A_BUILD:
        pytest.skip("only bubblewrap keeps the memory of other processes from the tests")
    await withstand(attack, bubblewrap)


@pytest.mark.attack("build-daemon")
async def test_without_isolation_no_daemon_of_a_build_survives_either():
    await withstand(processes.DAEMON_OF_A_BUILD, "none")


@pytest.mark.thorough
@pytest.mark.parametrize("attack", cases(ONE_OF_EACH_SORT))
async def test_an_attack_without_isolation_is_not_resolved(attack):
    await withstand(attack, "none")


@pytest.mark.parametrize("repair", REPAIRS, ids=str)
async def test_an_honest_repair_is_resolved_without_notes_on_tampering(repair, bubblewrap):
    await accept(repair, bubblewrap)


@pytest.mark.thorough
@pytest.mark.parametrize("repair", REPAIRS[::3], ids=str)
async def test_an_honest_repair_without_isolation_is_resolved(repair):
    await accept(repair, "none")
