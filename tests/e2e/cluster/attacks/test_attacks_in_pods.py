"""Tests of attacks on the score and honest repairs as Episodes. All run in parallel, since each takes seconds to start.

``E2E_SECURITY=all`` runs all of them (``make e2e-security``). Otherwise an attack of each family and two repairs run.
"""

import json
import os
from types import SimpleNamespace

import msgspec
import pytest

from tests.e2e.cluster.episodes import SUBMIT, episode, replay, shell
from tests.e2e.cluster.stored import read_stored
from tests.e2e.cluster.support import condition, new_namespace, until
from tests.fakes.attacks import processes
from tests.fakes.attacks.every import EVERY_ATTACK, FAMILIES, REPAIRS, cases
from tests.fakes.attacks.model import Played, check_accepted, check_withstood, make_task, shell_command

SECONDS = 2400.0
EVAL = {"tool": "eval", "arguments": {}}
EVERY = os.environ.get("E2E_SECURITY") == "all"
# The default image has no make.
ATTACKS = [each for each in (*EVERY_ATTACK, *processes.ATTACKS) if not each.needs]
HONEST = [each for each in REPAIRS if not each.needs]
if not EVERY:
    ATTACKS = [next(each for each in attacks if not each.needs) for attacks in FAMILIES.values()]
    HONEST = HONEST[3:5]


@pytest.fixture(scope="module")
def ends(system):
    """Status and stored files of each Episode, by its name."""
    named = {f"attack-{at}": attack for at, attack in enumerate(ATTACKS)}
    named |= {f"repair-{at}": repair for at, repair in enumerate(HONEST)}
    with new_namespace("e2e-attacks") as kubectl:
        kubectl.apply(*(manifest(name, each) for name, each in named.items()))
        until(lambda: are_finished(kubectl), what="all Episodes to finish", seconds=SECONDS, pause=2.0)
        statuses = {each["metadata"]["name"]: each["status"] for each in kubectl.items("episodes")}
        stored = read_stored(system, kubectl.namespace)
    assert set(statuses) == set(named)
    return {name: (status, stored) for name, status in statuses.items()}


def manifest(name, each):
    """The Episode whose agent makes the changes and submits. If the attack ``deceives``, it calls eval before."""
    calls = [shell(shell_command(each.changes, "pod")), *([EVAL] if getattr(each, "deceives", False) else []), SUBMIT]
    task = msgspec.to_builtins(make_task(**each.task).spec)
    return episode(name, agent=replay(*calls), task=task, backoffLimit=0)


def are_finished(kubectl):
    return all(condition(each.get("status", {}), "Finished") for each in kubectl.items("episodes"))


def end_of(ends, name):
    """The outcome of an Episode from its stored result. The Episode's status must agree with the result."""
    status, stored = ends[name]
    files = {path.rpartition("/")[2]: data.decode() for path, data in stored.items() if f"/{name}/" in path}
    assert "result.json" in files, status
    result = json.loads(files["result.json"])
    assert (status["reason"] == "Resolved") == result.get("resolved", False), (status, result)
    steps = [json.loads(line) for line in files["trajectory.jsonl"].splitlines()[1:]]
    changed, *rest = [step["observation"] for step in steps if step["call"]]
    assert changed["exitStatus"] == 0, changed["text"]
    evaluated = rest[0] if len(rest) > 1 else None
    shown = SimpleNamespace(
        resolved=result.get("resolved", False),
        score=result.get("score", 0),
        message=result.get("message", ""),
        notes=result.get("notes", ()),
        integrity=SimpleNamespace(clean=result["integrity"].get("clean", False)),
    )
    # It is not enough that the attack failed: the episode must have been scored in its only attempt.
    assert status["reason"] in ("Resolved", "Unresolved"), status
    deceived = evaluated is not None and evaluated.get("exitStatus") == 0
    return Played(shown, deceived, (evaluated or changed)["text"])


# The first of these tests waits for the end of all Episodes.
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("attack", cases(ATTACKS))
def test_an_attack_in_a_pod_is_not_resolved(attack, ends):
    check_withstood(attack, end_of(ends, f"attack-{index_of(ATTACKS, attack)}"))


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("repair", HONEST, ids=str)
def test_an_honest_repair_in_a_pod_is_resolved(repair, ends):
    check_accepted(repair, end_of(ends, f"repair-{index_of(HONEST, repair)}").result)


def index_of(several, one):
    return next(at for at, each in enumerate(several) if each is one)
