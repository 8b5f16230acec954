"""Tests of every fault that affects a single episode, at every moment."""

import pytest

from tests.e2e.cluster.faults.cells import run_cell
from tests.e2e.cluster.faults.designs import OF_ONE_EPISODE, designed
from tests.e2e.cluster.faults.moments import Moment

CELLS = [(fault, moment) for fault in OF_ONE_EPISODE for moment in Moment if designed(fault, moment) is not None]


@pytest.mark.parametrize(("fault", "moment"), CELLS, ids=lambda value: value.value.replace(" ", "-"))
def test_fault_during_an_episode(stage, fault, moment):
    run_cell(stage, fault, moment)
