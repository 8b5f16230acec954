"""Every attack and every honest repair, for each kind of sandbox to be held against."""

from tests.fakes.attacks import files, honest, machinery, programs, pytest_inside, values

ATTACKS = [*files.ATTACKS, *machinery.ATTACKS, *programs.ATTACKS, *values.ATTACKS]
# The tests of scoring hold the verifier alone against these last; where they are named here they are whole episodes.
EVERY_ATTACK = [*ATTACKS, *pytest_inside.ATTACKS]
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
