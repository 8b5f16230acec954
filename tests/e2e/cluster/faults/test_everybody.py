"""Tests of faults that affect many episodes: an episode at each moment, and a single fault."""

import pytest

from tests.e2e.cluster.faults.cells import run_cells
from tests.e2e.cluster.faults.designs import OF_ONE_AGENT, OF_THE_CLUSTER


@pytest.mark.parametrize("fault", [*OF_ONE_AGENT, *OF_THE_CLUSTER], ids=lambda fault: fault.value.replace(" ", "-"))
def test_fault_during_many_episodes(stage, fault):
    run_cells(stage, fault)
