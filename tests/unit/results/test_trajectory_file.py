import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.errors import ManifestError
from dgym.results import DirectoryStore, Record, TrajectoryHeader, read_trajectory
from dgym.wire import EndReason, Frame, Observation, Score, Step, ToolCall

STEPS = (
    Step(seq=0, call=None, observation=Observation(text="Repair it.\nüñí\u2028code", tool="reset")),
    Step(
        seq=1,
        call=ToolCall(tool="pdb", arguments={"command": "b calc.py:3"}),
        observation=Observation(text="Breakpoint 1", tool="pdb", frame=Frame(file="calc.py", line=3, function="add")),
    ),
    Step(
        seq=2,
        call=ToolCall(tool="submit"),
        observation=Observation(
            text="", ok=False, score=Score(score=1, max_score=2), end_reason=EndReason.UNRESOLVED, exit_status=-9
        ),
    ),
)


def plain(steps):
    """Return the steps without their times."""
    return tuple(Step(seq=step.seq, call=step.call, observation=step.observation) for step in steps)


def begin(root, **header):
    """Return the record of an attempt in a local results directory, and the path of its trajectory."""
    record = Record(DirectoryStore(root, local=True), "n/e/d/1")
    record.begin(TrajectoryHeader(**header))
    return record, root / "n/e/d/1/trajectory.jsonl"


def write(root, steps=STEPS):
    record, path = begin(root, episode="one", task="calc", tools=("pdb",))
    for step in steps:
        record.write(step)
    return path


def test_a_written_trajectory_is_read_unchanged(tmp_path):
    trajectory = read_trajectory(write(tmp_path))
    assert trajectory.header.episode == "one"
    assert trajectory.header.schema_version == 1
    assert plain(trajectory.steps) == STEPS
    assert not trajectory.torn


def test_each_step_is_on_disk_before_the_next(tmp_path):
    record, path = begin(tmp_path)
    for number, step in enumerate(STEPS, start=1):
        record.write(step)
        assert len(read_trajectory(path).steps) == number


def test_files_are_camel_case_and_leave_defaults_out(tmp_path):
    lines = write(tmp_path).read_text("utf-8").split("\n")
    assert json.loads(lines[0])["schemaVersion"] == 1
    assert set(json.loads(lines[1])["observation"]) == {"text", "tool"}
    assert json.loads(lines[3])["observation"]["exitStatus"] == -9


def test_an_existing_trajectory_is_never_overwritten(tmp_path):
    path = write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        begin(tmp_path)
    assert path.read_bytes() == before


@given(cut=st.integers(min_value=1, max_value=400))
def test_a_file_cut_anywhere_gives_the_whole_steps_before_the_cut(tmp_path_factory, cut):
    path = write(tmp_path_factory.mktemp("cut"))
    data = path.read_bytes()
    kept = data[: max(data.index(b"\n") + 1, len(data) - cut)]
    path.write_bytes(kept)
    trajectory = read_trajectory(path)
    assert plain(trajectory.steps) == STEPS[: kept.count(b"\n") - 1]
    assert trajectory.torn == (not kept.endswith(b"\n"))


def test_fields_of_later_versions_are_ignored(tmp_path):
    path = write(tmp_path)
    header, *rest = path.read_text("utf-8").split("\n")
    header = json.dumps({**json.loads(header), "schemaVersion": 7, "planet": "Mars"})
    rest[0] = json.dumps({**json.loads(rest[0]), "tokens": 12})
    path.write_text("\n".join([header, *rest]), "utf-8")
    assert plain(read_trajectory(path).steps) == STEPS


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "header line is missing"),
        ("not json\n", ":1: not a trajectory"),
        ('{"tool": "eval"}\n', "no schemaVersion"),
        ('{"schemaVersion": 1}\n{"seq": "x"}\n', ":2: not a step"),
    ],
)
def test_other_files_are_refused_with_file_and_line(tmp_path, content, complaint):
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(ManifestError, match=complaint) as caught:
        read_trajectory(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(ManifestError, match="cannot read the trajectory"):
        read_trajectory(tmp_path / "none.jsonl")


def test_each_line_has_the_time_of_its_observation(tmp_path):
    lines = write(tmp_path).read_text("utf-8").split("\n")[1:-1]
    elapsed = [json.loads(line)["elapsedSeconds"] for line in lines]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] >= 0
