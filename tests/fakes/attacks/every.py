"""Every attack and every honest repair, for each kind of sandbox to be held against."""

import pytest

from tests.fakes.attacks import files, honest, machinery, processes, programs, pytest_inside, values

# By the ids of the catalog of attacks.
FAMILIES = {
    "files": files.ATTACKS,
    "machinery": [*machinery.ATTACKS, *pytest_inside.MARKED],
    "programs": programs.ATTACKS,
    "patched-programs": programs.MARKED,
    "values": values.ATTACKS,
    "inside": pytest_inside.ATTACKS,
    "build-daemon": [processes.DAEMON_OF_A_BUILD],
    "report-token": [attack for attack in processes.ATTACKS if attack is not processes.DAEMON_OF_A_BUILD],
}
ATTACKS = [*files.ATTACKS, *machinery.ATTACKS, *programs.ATTACKS, *programs.MARKED, *values.ATTACKS]
# The tests of scoring hold the verifier alone against these last; where they are named here they are whole episodes.
EVERY_ATTACK = [*ATTACKS, *pytest_inside.MARKED, *pytest_inside.ATTACKS]
REPAIRS = [*honest.REPAIRS, *programs.REPAIRS]

_SORTS = {
    "distribution in the workspace",
    "conftest at each level",
    "every configuration",
    "tests behind a link",
    "tests of another name",
    "stale bytecode",
    "environment of the shell",
    "daemon that waits for the verifier",
    "trace function",
    "replaced functions of items",
    "thread that changes what was raised",
    "writes a module",
    "mock.ANY",
    "comparison under a false name",
    "thread in true && python check.py",
    "patched trace function",
    "GNUmakefile",
}
ONE_OF_EACH_SORT = [attack for attack in ATTACKS if attack.name in _SORTS]


def cases(attacks):
    """Parameters of a test that plays these attacks, each marked with the id of its family."""
    return [pytest.param(attack, id=str(attack), marks=pytest.mark.attack(family_of(attack))) for attack in attacks]


def family_of(attack):
    """The id in the catalog of attacks."""
    return next(name for name, attacks in FAMILIES.items() if any(each is attack for each in attacks))
