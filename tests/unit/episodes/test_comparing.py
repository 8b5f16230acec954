import pytest

from dgym.api import loads
from dgym.env import Opening
from dgym.episodes import compare, run_again
from dgym.errors import ManifestError
from dgym.results import Trajectory, TrajectoryHeader
from dgym.wire import EndReason, Observation, Step, ToolCall


def step(seq, text, **fields):
    return Step(seq=seq, call=ToolCall(tool="eval"), observation=Observation(text=text, tool="eval", **fields))


def test_runs_that_differ_only_by_chance_are_the_same():
    before = (step(0, "<A at 0x7f0011223344>", duration_seconds=1.0), step(1, "3 passed in 0.12s"))
    after = [step(0, "<A at 0x7f9911223344>", duration_seconds=2.0), step(1, "3 passed in 4.01s")]
    assert list(compare(before, after)) == []


def test_a_difference_names_step_tool_and_field():
    before = (step(1, "1\n2\n3", exit_status=0),)
    after = [step(1, "1\n2\n4", exit_status=1)]
    differences = list(compare(before, after))
    assert [(one.seq, one.tool, one.field) for one in differences] == [(1, "eval", "text"), (1, "eval", "exit_status")]
    assert "-3\n+4" in differences[0].text
    assert differences[1].text == "0 -> 1"


def test_an_earlier_end_is_a_difference():
    before = (step(1, "a"), step(2, "b"))
    (difference, missed) = compare(before, [step(1, "a", end_reason=EndReason.RESOLVED)])
    assert difference.text == 'null -> "Resolved"'
    assert missed.seq == 2


def test_a_large_difference_is_cut():
    (difference,) = compare((step(1, "\n".join(map(str, range(500)))),), [step(1, "x")])
    assert difference.text.count("\n") < 50
    assert "more lines" in difference.text


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"tools": (5,)}, "calc: its tools are not a list of tools"),
        ({"agent": {"maxSteps": "9"}}, "calc: its agent's limits are wrong: .*max_steps"),
        ({"agent": {"maxSteps": 0}}, "calc: its agent's limits are wrong: .*max_steps"),
    ],
)
async def test_a_trajectory_whose_header_is_wrong_is_refused(header, message):
    (task,) = loads("{apiVersion: dgym.dev/v1alpha1, kind: DebugTask, metadata: {name: calc}, spec: {}}")
    trajectory = Trajectory(header=TrajectoryHeader(episode="calc", **header), steps=())
    with pytest.raises(ManifestError, match=message):
        await run_again(trajectory, task, Opening(sandbox="none"))
