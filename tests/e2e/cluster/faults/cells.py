"""Cells of the fault matrix: bring an episode to a moment, cause a fault, and check the outcome."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dgym.results import Attempt
from tests.e2e.cluster.faults import kinds, node
from tests.e2e.cluster.faults.designs import OF_ONE_AGENT, End, Fault, designed
from tests.e2e.cluster.faults.kinds import Stage
from tests.e2e.cluster.faults.moments import STEPS, Moment, held_episode, reach
from tests.e2e.cluster.support import unique, until

FINISH_SECONDS = 600
FILES = {"trajectory.jsonl", "patch.diff", "result.json", "episode.log"}
IN_FLIGHT = "step-in-flight.json"


def run_cell(stage: Stage, fault: Fault, moment: Moment) -> None:
    """Run an episode with a separate fault."""
    name = unique("cell")
    begin(stage, name, moment)
    seen = pods_of(stage, name)
    with kinds.of_one(fault)(stage, name):
        stage.store.open(stage.episodes, name)
    conclude(stage, name, fault, moment, seen)


def run_cells(stage: Stage, fault: Fault) -> None:
    """Run an episode for each moment, and cause a single fault for all of them."""
    names = {moment: unique("cell") for moment in Moment}
    with ThreadPoolExecutor(len(names)) as threads:
        with stage.one_agent() if fault in OF_ONE_AGENT else nullcontext():
            list(threads.map(lambda moment: begin(stage, names[moment], moment), names))
        seen = {moment: pods_of(stage, name) for moment, name in names.items()}
        if fault in OF_ONE_AGENT:
            assert len(stage.serving_agents()) == 1
            strike = kinds.of_one(fault)(stage, names[Moment.DURING_STEP])
        else:
            strike = kinds.of_all(fault)(stage)
        with strike:
            for name in names.values():
                stage.store.open(stage.episodes, name)
        list(threads.map(lambda moment: conclude(stage, names[moment], fault, moment, seen[moment]), names))


def begin(stage: Stage, name: str, moment: Moment) -> None:
    """Run an episode up to the moment."""
    stage.episodes.apply(held_episode(name, moment))
    reach(stage.episodes, name, moment, stage.store)


def pods_of(stage: Stage, name: str) -> set[str]:
    """The UIDs of the pods that an episode has now."""
    return {pod["metadata"]["uid"] for pod in stage.episodes.items("pods", f"dgym.dev/episode={name}")}


def conclude(stage: Stage, name: str, fault: Fault, moment: Moment, seen: set[str]) -> None:
    """Wait for the end of the episode, compare it with the design, and record it."""
    status = stage.episodes.finished(name, FINISH_SECONDS)
    observed = end_of(status)
    wanted = designed(fault, moment)
    holds = False
    try:
        assert observed == wanted, f"{status}\n{stage.episodes.explain(name)}"
        check_record(stage, name, status)
        check_removed(stage, {name}, seen)
        holds = True
    finally:
        record(fault, moment, observed, as_designed=holds)


def end_of(status: dict[str, Any]) -> End:
    """The end that an Episode's status reports."""
    return End(
        reason=status["reason"],
        attempts=status["attempt"],
        failures=status.get("failures", 0),
        disruptions=status.get("disruptions", 0),
        poisoned=len(status.get("poisonedSteps", ())),
    )


def check_record(stage: Stage, name: str, status: dict[str, Any]) -> None:
    """Check that a single attempt has a stored result, and that each attempt has each step once."""
    until(lambda: stored(stage, name), what=f"{name}: a stored outcome")
    attempts, outcomes = stage.store.attempts(stage.episodes.namespace, name), stored(stage, name)
    assert [path.name for path in outcomes] == [str(status["attempt"])], attempts
    assert {path.name for path in outcomes[0].iterdir()} - {IN_FLIGHT} == FILES
    result = json.loads((outcomes[0] / "result.json").read_text())
    assert (result["reason"], result["score"]) == (status["reason"], status["outcome"]["score"])
    for attempt in attempts:
        check_steps(attempt)
    if status["reason"] == "Resolved":
        # An attempt that starts from the beginning repeats a poisoned step. An attempt that replays omits it.
        poisoned = {each["step"] for each in status.get("poisonedSteps", ())}
        shown, every = numbers(outcomes[0]), list(range(1, STEPS + 1))
        assert shown in (every, [number for number in every if number not in poisoned]), shown


def check_removed(stage: Stage, names: set[str], pods: set[str]) -> None:
    """Check that the episodes have no pods or Secrets, and that the node has no remains of ``pods`` (UIDs)."""
    selector = f"dgym.dev/episode in ({','.join(sorted(names))})"
    until(lambda: not stage.episodes.items("pods", selector), what="the pods to go")
    until(lambda: not node.remains(stage.cluster, pods), what="the node to be clean")
    owners = {owner["name"] for secret in stage.episodes.items("secrets")
              for owner in secret["metadata"].get("ownerReferences", ())}  # fmt: skip
    assert not names & owners


def stored(stage: Stage, name: str) -> list[Path]:
    """The attempts that have a stored result. The marker of an abandoned attempt does not count."""
    attempts = [Attempt(path) for path in stage.store.attempts(stage.episodes.namespace, name)]
    return [attempt.path for attempt in attempts if attempt.load() is not None]


def check_steps(attempt: Path) -> None:
    """Check that the steps are numbered without gaps or repetitions."""
    sequence = [line["seq"] for line in trajectory(attempt)]
    assert sequence == list(range(len(sequence))), f"{attempt}: {sequence}"


def numbers(attempt: Path) -> list[int]:
    """The numbers that the steps wrote to the workspace's file, from the output of ``cat counter.txt``."""
    (shown,) = (
        line["observation"]["text"]
        for line in trajectory(attempt)
        if line["call"] and line["call"]["arguments"].get("command") == "cat counter.txt"
    )
    return [int(word) for word in shown.split() if word.isdecimal()]


def trajectory(attempt: Path) -> list[dict[str, Any]]:
    """The steps of a stored trajectory. The file of an abandoned attempt may end in the middle of a line."""
    file = attempt / "trajectory.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines[1:]]


def record(fault: Fault, moment: Moment, observed: End, *, as_designed: bool) -> None:
    """Save the outcome for the report, if ``DGYM_E2E_FAULT_RECORDS`` is set."""
    directory = os.environ.get("DGYM_E2E_FAULT_RECORDS")
    if directory:
        cell = {"fault": fault, "moment": moment, **observed.as_json(), "asDesigned": as_designed}
        Path(directory, f"{unique('cell')}.json").write_text(json.dumps(cell))
