"""Tests of six cells of the matrix for every change of dgym. The whole matrix takes longer."""

import pytest

from tests.e2e.cluster.faults.cells import run_cell
from tests.e2e.cluster.faults.designs import Fault
from tests.e2e.cluster.faults.moments import Moment

CELLS = (
    (Fault.SANDBOX_KILLED, Moment.DURING_STEP),
    (Fault.SANDBOX_OOM, Moment.BETWEEN_STEPS),
    (Fault.POD_DELETED, Moment.BEFORE_FIRST_STEP),
    (Fault.POD_EVICTED, Moment.DURING_CLOSE),
    (Fault.SIDECAR_KILLED, Moment.DURING_STEP),
    (Fault.AGENT_RESTARTED, Moment.AFTER_CLOSE),
)


@pytest.mark.parametrize(("fault", "moment"), CELLS, ids=lambda value: value.value.replace(" ", "-"))
def test_fault_during_an_episode(stage, fault, moment):
    run_cell(stage, fault, moment)
