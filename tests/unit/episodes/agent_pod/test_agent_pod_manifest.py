"""Tests of the function with which the agent pod reads an assignment, and of its errors."""

import pytest

from dgym.agents import AgentContext
from dgym.agents.replay import read_calls
from dgym.episodes.agent_pod._attempt import read_run
from dgym.errors import DgymError
from dgym.wire.assignments import Assignment
from dgym.wire.http import Epochs, ToolWithOptions


def assignment(agent, **fields):
    task = fields.pop("task", {"metadata": {"name": "calc"}, "spec": {}})
    return Assignment(
        namespace="default",
        episode="one",
        episode_uid="0123456789abcdefXYZ",
        attempt=1,
        epoch=1,
        epochs=Epochs(prepare="p", drive="d"),
        sidecar_url="http://127.0.0.1:1",
        prepare_token="p",
        drive_token="d",
        task=task,
        agent=agent,
        **fields,
    )


def test_seed_tools_and_session_are_the_episodes():
    run = read_run(
        assignment(
            {"name": "rewrite_agent", "seed": 5, "model": "m"}, sample=2, tools=("pdb", ToolWithOptions(name="eval"))
        )
    )
    assert run.seed == 7
    assert [getattr(tool, "name", tool) for tool in run.tools] == ["eval"]
    assert run.session == "one-0123456789abcdef"
    assert run.base is None


@pytest.mark.parametrize(
    ("agent", "fields", "message"),
    [
        ({"name": "debug_agnt"}, {}, "did you mean 'debug_agent'"),
        ({"name": "os:system"}, {}, "installed in its image"),
        ({"name": "human"}, {}, "terminal"),
        ({}, {}, "agent: "),
        ({"name": "replay"}, {"task": {"metadata": {}}}, "task: "),
        ({"name": "debug_agent", "parameters": {"treeDeph": 1}}, {}, "treeDepth"),
    ],
)
def test_invalid_assignments_are_refused_with_the_reason(agent, fields, message):
    with pytest.raises(DgymError, match=message):
        read_run(assignment(agent, **fields))


@pytest.mark.parametrize("reference", ["/etc/passwd", "trajectory.jsonl", "../x"])
def test_parameters_name_no_files_of_the_agents_own(reference):
    with pytest.raises(DgymError, match="do not read files"):
        read_calls(AgentContext(task_name="calc", parameters={"trajectory": reference}, base=None))
