"""One attack of each sort where bubblewrap isolates; in ``make test-all`` every one, and a few where nothing does.

None may resolve without a mark. ``make e2e`` plays every one of them in containers, and without isolation.
"""

import pytest

from tests.fakes.attacks import processes
from tests.fakes.attacks.every import ATTACKS, ONE_OF_EACH_SORT, REPAIRS, cases
from tests.fakes.attacks.model import accept, check_not_resolved, play, withstand

# The others are of a sort of which another one is played.
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
    """Without a proof that the attack deceives a plain run, which ``make test-all`` requires of each attack."""
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
async def test_an_honest_repair_is_resolved_without_a_word_about_tampering(repair, bubblewrap):
    await accept(repair, bubblewrap)


@pytest.mark.thorough
@pytest.mark.parametrize("repair", REPAIRS[::3], ids=str)
async def test_an_honest_repair_without_isolation_is_resolved(repair):
    await accept(repair, "none")
