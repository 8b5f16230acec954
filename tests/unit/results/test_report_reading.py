import asyncio
import json

import pytest

from dgym.api import LEFT_OUT_ANNOTATION
from dgym.errors import ManifestError
from dgym.results import Attempt, Record, StoredResult, TrajectoryHeader, episode_path, record_left_out
from dgym.results.report import read_run
from dgym.wire import EndReason, Observation, Step, ToolCall


def play(root, episode="one", *, digest="d1", reason=EndReason.RESOLVED, calls=(), stored=True, torn=False, **fields):
    """Write an attempt as a run writes it, and return it."""
    record = Record.new(root, episode_path("local", episode, digest))
    record.begin(TrajectoryHeader(episode=episode))
    record.write(Step(seq=0, call=None, observation=Observation(text="x", tool="reset")))
    for seq, (tool, ok, seconds) in enumerate(calls, start=1):
        observation = Observation(text="y" * 100, tool=tool, ok=ok, duration_seconds=seconds)
        record.write(Step(seq=seq, call=ToolCall(tool=tool), observation=observation))
    attempt = Attempt(root / episode_path("local", episode, digest) / str(record.attempt))
    if torn:
        with attempt.trajectory.open("a") as file:
            file.write('{"seq": 9, "call": {"to')
    if stored:
        result = StoredResult(resolved=reason is EndReason.RESOLVED, reason=reason, episode=episode, **fields)
        asyncio.run(record.finish(result))
    return attempt


def set_header(attempt, **fields):
    header, *steps = attempt.trajectory.read_text().splitlines(keepends=True)
    attempt.trajectory.write_text(json.dumps({**json.loads(header), **fields}) + "\n" + "".join(steps))


def test_each_episode_is_one_record_with_its_calls(tmp_path):
    play(tmp_path, calls=[("pdb", True, 0.5), ("", False, 0.0)], task="calc", agent="replay", steps=2, torn=True)
    (record,) = read_run([tmp_path]).records
    assert (record.task, record.agent, record.steps, record.resolved) == ("calc", "replay", 2, True)
    assert [(call.tool, call.ok, call.seconds) for call in record.calls] == [
        ("pdb", True, 0.5),
        ("(not a call)", False, 0.0),
    ]
    assert record.stages is not None
    assert record.stages.tools == 0.5
    assert record.stages.prepare >= 0


@pytest.mark.parametrize(("wall_seconds", "known"), [(0.0, True), (None, False)])
def test_stages_are_unknown_only_where_the_attempt_was_not_timed(tmp_path, wall_seconds, known):
    attempt = play(tmp_path, calls=[("pdb", True, 0.5)])
    stored = json.loads(attempt.result.read_text())
    attempt.result.write_text(json.dumps({**stored, "wallSeconds": wall_seconds}))
    (record,) = read_run([tmp_path]).records
    assert (record.stages is not None) is known


def test_the_newest_attempt_with_a_result_counts(tmp_path):
    play(tmp_path, reason=EndReason.SETUP_FAILED)
    play(tmp_path, reason=EndReason.UNRESOLVED)
    play(tmp_path, stored=False)
    (record,) = read_run([tmp_path]).records
    assert (record.attempt, record.reason) == (2, EndReason.UNRESOLVED)


def test_attempts_without_a_result_are_unfinished(tmp_path):
    play(tmp_path, stored=False)
    broken = play(tmp_path, "two")
    broken.result.write_text("{")
    run = read_run([tmp_path])
    assert run.records == ()
    assert [path.split("/")[-2] for path in run.unfinished] == ["one", "two"]


def test_earlier_configurations_are_left_out_unless_asked_for(tmp_path):
    play(tmp_path, digest="old", agent="a", start_time="2026-01-01T00:00:00Z", steps=1)
    play(tmp_path, digest="new", agent="a", start_time="2026-01-02T00:00:00Z", steps=2)
    play(tmp_path, digest="other", agent="b", start_time="2026-01-01T00:00:00Z", steps=3)
    run = read_run([tmp_path])
    assert [record.steps for record in run.records] == [2, 3]
    assert run.superseded == 1
    everything = read_run([tmp_path], every_configuration=True)
    assert len(everything.records) == 3
    assert everything.superseded == 0


@pytest.mark.parametrize("stored", [True, False])
def test_the_last_run_of_an_episode_of_a_set_counts(tmp_path, stored):
    # dgym retry recreates the Episode with another UID. A run that failed may lack a result.
    first, second, agent = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", {"name": "a", "model": "m"}
    known = {"agent": "a", "model": "m"}
    for uid, start, steps, has_result in (("uid-1", first, 1, stored), ("uid-2", second, 2, True)):
        attempt = play(
            tmp_path, digest=uid, reason=EndReason.MODEL_ERROR if uid == "uid-1" else EndReason.RESOLVED,
            stored=has_result, start_time=start, steps=steps, **known,
        )  # fmt: skip
        set_header(attempt, namespace="local", agent=agent, startTime=start)
    run = read_run([tmp_path])
    assert [(record.steps, record.resolved) for record in run.records] == [(2, True)]
    assert (run.unfinished, run.superseded) == ((), int(stored))
    assert len(read_run([tmp_path], every_configuration=True).unfinished) == int(not stored)


@pytest.mark.parametrize("changed", [{"startTime": "2026-01-03T00:00:00Z"}, {"agent": {"name": "b"}}, {"arm": "x"}])
def test_a_later_or_another_run_without_a_result_is_unfinished(tmp_path, changed):
    play(tmp_path, digest="old", agent="a", start_time="2026-01-02T00:00:00Z")
    attempt = play(tmp_path, digest="new", stored=False)
    header = {"namespace": "local", "agent": {"name": "a"}, "startTime": "2026-01-01T00:00:00Z"}
    set_header(attempt, **header)
    assert not read_run([tmp_path]).unfinished
    set_header(attempt, **{**header, **changed})
    assert len(read_run([tmp_path]).unfinished) == 1


def test_two_directories_are_two_runs_and_overlapping_ones_count_once(tmp_path):
    play(tmp_path / "a")
    play(tmp_path / "b")
    assert len(read_run([tmp_path / "a", tmp_path / "b"]).records) == 2
    assert len(read_run([tmp_path / "a", tmp_path / "a" / "local"]).records) == 1


@pytest.mark.parametrize("level", range(5))
def test_any_level_of_a_results_directory_can_be_read(tmp_path, level):
    attempt = play(tmp_path).path
    directory = [tmp_path, *reversed(list(attempt.parents)[:3]), attempt][level]
    assert len(read_run([directory]).records) == 1


def test_numeric_names_of_episodes_are_not_read_as_attempts(tmp_path):
    play(tmp_path, "7", digest="12345678")
    assert [record.episode for record in read_run([tmp_path]).records] == ["7"]


def test_a_result_without_a_trajectory_or_times_still_counts(tmp_path):
    attempt = play(tmp_path)
    attempt.trajectory.unlink()
    (record,) = read_run([tmp_path]).records
    assert record.calls == ()
    assert record.stages is None


def test_model_and_queue_are_separate_stages(tmp_path):
    attempt = play(tmp_path, calls=[("pdb", True, 0.5)], duration_seconds=4.0)
    *lines, last = attempt.trajectory.read_text().splitlines()
    step = {**json.loads(last), "exchanges": [{"secondsModel": 2.0, "secondsQueue": 0.25, "text": "hm"}]}
    attempt.trajectory.write_text("\n".join([*lines, json.dumps(step), ""]))
    stages = read_run([tmp_path]).records[0].stages
    assert (stages.model, stages.queue, stages.tools, stages.agent) == (2.0, 0.25, 0.5, 1.25)


@pytest.mark.parametrize(("stored", "price"), [("0.0125", 0.0125), (None, None), ("much", None)])
def test_the_stored_price_is_read(tmp_path, stored, price):
    play(tmp_path, price=stored)
    assert read_run([tmp_path]).records[0].price == price


def test_failures_have_no_stages(tmp_path):
    play(tmp_path, reason=EndReason.SANDBOX_LOST)
    assert read_run([tmp_path]).records[0].stages is None


def test_tasks_that_sets_leave_out_are_read_beside_the_results(tmp_path):
    play(tmp_path)
    record_left_out(tmp_path, "first", {LEFT_OUT_ANNOTATION: '{"Flaky": 2}'})
    record_left_out(tmp_path, "second", {LEFT_OUT_ANNOTATION: '{"Broken": 1}'})
    record_left_out(tmp_path, "third", {LEFT_OUT_ANNOTATION: "no JSON"})
    assert read_run([tmp_path]).left_out == {"first": {"Flaky": 2}, "second": {"Broken": 1}}
    record_left_out(tmp_path, "first", {})
    assert read_run([tmp_path]).left_out == {"second": {"Broken": 1}}


def test_directories_without_results_are_refused(tmp_path):
    with pytest.raises(ManifestError, match="the directory does not exist"):
        read_run([tmp_path / "none"])
    with pytest.raises(ManifestError, match="no results were found"):
        read_run([tmp_path])
