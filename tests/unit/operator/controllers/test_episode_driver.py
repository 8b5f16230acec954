"""Tests of the Secret of an external driver.

It exists after the pod is prepared, and only for episodes without an agent.
"""

import pytest

from dgym.wire.assignments import AssignmentState
from dgym_operator.controllers import CreateDriverSecret
from dgym_operator.controllers.episode import decide
from tests.unit.operator.controllers.reconcile_builders import NOW, ready_pod, report, running, view


def secrets(seen):
    return [action for action in decide(seen, NOW).actions if isinstance(action, CreateDriverSecret)]


def test_a_prepared_pod_without_agent_gets_a_driver_secret():
    pod = ready_pod()
    (secret,) = secrets(view(running(), pod, driven=False, agent_pod=report(AssignmentState.RUNNING)))
    assert (secret.pod_name, secret.pod_uid, secret.attempt) == (pod.metadata.name, pod.metadata.uid, 1)
    assert secret.url == "http://10.0.0.7:8080"


@pytest.mark.parametrize("state", [state for state in AssignmentState if state is not AssignmentState.RUNNING])
def test_the_driver_secret_is_created_only_between_preparation_and_end(state):
    assert secrets(view(running(), ready_pod(), driven=False, agent_pod=report(state))) == []


def test_an_episode_with_an_agent_has_no_driver_secret():
    assert secrets(view(running(), ready_pod(), agent_pod=report(AssignmentState.RUNNING))) == []
