"""Tests of the progress that an agent pod reports, also while its results store is unavailable."""

import pytest

from dgym.episodes.agent_pod._assignments import AssignmentProgress
from dgym.episodes.agent_pod._telemetry import Metrics
from dgym.results import StoreUnavailable
from dgym.wire import Observation, Step
from dgym.wire.assignments import AssignmentState


@pytest.mark.parametrize("stage", [AssignmentState.PREPARING, AssignmentState.RUNNING, AssignmentState.CLOSING])
def test_a_store_that_is_away_before_there_counts_changes_no_stage(stage):
    reported, metrics = [], Metrics()
    progress = AssignmentProgress(lambda stage: reported.append(stage.state), metrics, namespace="team")
    progress.enter(stage)
    progress.store_unavailable(StoreUnavailable("away"))
    assert set(reported) == {stage}
    assert b"dgym_agent_store_failures_total 1.0" in metrics.text()


def test_the_deadline_runs_from_the_reset_to_the_last_step():
    reported = []
    progress = AssignmentProgress(lambda stage: reported.append(stage.active), Metrics(), namespace="team")
    progress.enter(AssignmentState.PREPARING)
    progress.enter(AssignmentState.RUNNING)
    progress.step_recorded(Step(seq=0, call=None, observation=Observation(text="")))
    progress.enter(AssignmentState.CLOSING)
    assert reported == [False, False, True, False]

    progress = AssignmentProgress(lambda stage: reported.append(stage.active), Metrics(), namespace="team")
    progress.resumed()
    progress.enter(AssignmentState.RUNNING)
    assert reported[-1]


def test_waits_for_the_model_are_reported_only_in_the_state_running():
    reported = []
    progress = AssignmentProgress(
        lambda stage: reported.append((stage.state, stage.cause)), Metrics(), namespace="team"
    )
    progress.enter(AssignmentState.RUNNING)
    progress.waits("waiting for the model")
    progress.step_recorded(Step(seq=0, call=None, observation=Observation(text="")))
    progress.enter(AssignmentState.CLOSING)
    progress.enter(AssignmentState.RUNNING)
    progress.waits("")
    running, closing = AssignmentState.RUNNING, AssignmentState.CLOSING
    waits = "waiting for the model"
    assert reported == [
        (running, ""),
        (running, waits),
        (running, waits),
        (closing, ""),
        (running, waits),
        (running, ""),
    ]


def test_an_unavailable_store_is_reported_as_a_state():
    reported = []
    progress = AssignmentProgress(
        lambda stage: reported.append((stage.state, stage.cause)), Metrics(), namespace="team"
    )
    progress.enter(AssignmentState.STORING)
    progress.store_unavailable(StoreUnavailable("away"))
    progress.store_unavailable(None)
    assert reported == [
        (AssignmentState.STORING, ""),
        (AssignmentState.STORE_UNAVAILABLE, "away"),
        (AssignmentState.STORING, ""),
    ]
