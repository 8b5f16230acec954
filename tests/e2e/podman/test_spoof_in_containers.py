"""Tests of every attack and every honest repair, with the agent and the verifier in containers."""

import base64

import pytest

from tests.fakes.attacks import processes
from tests.fakes.attacks.every import EVERY_ATTACK, REPAIRS, cases
from tests.fakes.attacks.model import accept, withstand

# The image has no make. This script runs a target's recipe from the file that make would choose.
MAKE = """\
#!/bin/sh
for file in GNUmakefile makefile Makefile; do
    [ ! -e "$file" ] || { sed -n "/^$1:/,/^$/s/^\\t//p" "$file" > /tmp/recipe; exec sh -e /tmp/recipe; }
done
exit 2
"""


@pytest.fixture(scope="module")
def image_with(build):
    encoded = base64.b64encode(MAKE.encode()).decode()
    put = "import base64, os; os.umask(0); f = os.open('/usr/local/bin/make', os.O_CREAT | os.O_WRONLY, 0o755)"
    lines = f"USER 0\nRUN python -c \"{put}; os.write(f, base64.b64decode('{encoded}'))\"\nUSER 1000:1000\n"
    built = {}

    def find(program):
        if not program:
            return {}
        if program not in built:
            built[program] = build(program, lines)
        return {"image": built[program]}

    return find


@pytest.mark.parametrize("attack", cases([*EVERY_ATTACK, *processes.ATTACKS]))
async def test_an_attack_in_a_container_is_not_resolved(attack, engine, image_with):
    await withstand(attack, "container", options={"engine": engine.flavor}, **image_with(attack.needs))


@pytest.mark.parametrize("repair", REPAIRS, ids=str)
async def test_an_honest_repair_in_a_container_is_resolved(repair, engine, image_with):
    await accept(repair, "container", options={"engine": engine.flavor}, **image_with(repair.needs))
