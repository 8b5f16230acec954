"""Every fault of one episode, or of the agent that serves it, at every moment."""

import pytest

from tests.e2e.cluster.faults.cells import run_cell
from tests.e2e.cluster.faults.designs import OF_ONE_AGENT, OF_ONE_EPISODE, designed
from tests.e2e.cluster.faults.moments import Moment


def cells(faults):
    return [(fault, moment) for fault in faults for moment in Moment if designed(fault, moment) is not None]


def label(value):
    return value.value.replace(" ", "-")


@pytest.mark.parametrize(("fault", "moment"), cells(OF_ONE_EPISODE), ids=label)
def test_of_an_episode(stage, fault, moment):
    run_cell(stage, fault, moment)


@pytest.mark.xdist_group("agents")
@pytest.mark.parametrize(("fault", "moment"), cells(OF_ONE_AGENT), ids=label)
def test_of_an_agent(stage, fault, moment):
    run_cell(stage, fault, moment)
