import asyncio
import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from dgym.results import Record, StoredResult, TrajectoryHeader, episode_path
from dgym.wire import EndReason, Integrity, IntegritySign, Observation, SignEvidence, Step, ToolCall
from dgym.wire.outcome import ModelRecord, Provenance, ReportedBySandbox


@pytest.fixture
def dgym(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, ["report", *arguments])


@pytest.fixture
def play(tmp_path):
    def play_one(root, task, reason, **fields):
        record = Record.new(tmp_path / root, episode_path("local", f"e-{task}", "d"))
        record.begin(TrajectoryHeader())
        record.write(Step(seq=0, call=None, observation=Observation(text="x", tool="reset")))
        observation = Observation(text="y", tool="pdb", duration_seconds=0.25)
        record.write(Step(seq=1, call=ToolCall(tool="pdb"), observation=observation))
        values = {"episode": f"e-{task}", "task": task, "agent": "debug", "model": "m-1", "steps": 4, **fields}
        result = StoredResult(resolved=reason is EndReason.RESOLVED, reason=reason, **values)
        asyncio.run(record.finish(result))

    return play_one


@pytest.fixture
def results(play):
    play("results", "one", EndReason.RESOLVED, input_tokens=1_000_000, output_tokens=100_000)
    play("results", "two", EndReason.STEP_LIMIT_REACHED)
    play("results", "three", EndReason.SETUP_FAILED)


def test_without_arguments_it_reads_the_default_directory(dgym, results):
    done = dgym()
    assert done.exit_code == 0, done.output
    assert "1 of 2 resolved: 50.0 % (9.5 to 90.5 %), pass@1 50.0 %, 1 failed" in done.output
    for expected in ("SetupFailed", "StepLimitReached", "pdb", "prepare", "m-1", "250.0", "1,000,000"):
        assert expected in done.output


def test_an_episode_that_was_cancelled_before_it_was_scored_is_not_in_the_rates(dgym, play, results):
    play("results", "four", EndReason.CANCELLED)
    assert "1 of 2 resolved" in dgym().output
    play("results", "five", EndReason.CANCELLED, score=1, max_score=3)
    assert "1 of 3 resolved" in dgym().output


def test_resolved_and_clean_are_shown_apart(dgym, play, results):
    assert "Clean" not in dgym().output
    seen = (
        SignEvidence(sign=IntegritySign.HISTORY_READ, detail="git log"),
        SignEvidence(sign=IntegritySign.HISTORY_READ, detail="b"),
    )
    play("results", "four", EndReason.RESOLVED, integrity=Integrity(clean=False, seen=seen))
    play("results", "five", EndReason.RESOLVED, integrity=Integrity(clean=True))
    play("results", "six", EndReason.UNRESOLVED, integrity=Integrity(clean=True))
    done = dgym()
    assert "3 of 5 resolved, 1 of them clean: 60.0 %" in done.output
    assert "Clean" in done.output
    assert [line.split() for line in done.output.splitlines() if "HistoryRead" in line] == [
        ["HistoryRead", "1", "20.0", "%"]
    ]
    overall = json.loads(dgym("--output", "json").output)["overall"]
    assert (overall["resolved"], overall["clean"], overall["signs"]) == (3, 1, {"HistoryRead": 1})
    lines = csv.DictReader(io.StringIO(dgym("--output", "csv").output))
    assert {line["task"]: line["clean"] for line in lines if line["clean"]} == {
        "four": "False",
        "five": "True",
        "six": "True",
    }


def test_prices_make_a_cost(dgym, results):
    assert "cost 3.00" in dgym("--price", "m-1=2:10").output


def test_json_holds_the_report_and_its_episodes(dgym, results):
    value = json.loads(dgym("--output", "json").output)
    assert value["overall"]["resolved"] == 1
    assert {episode["task"]: episode["reason"] for episode in value["episodes"]} == {
        "one": "Resolved",
        "two": "StepLimitReached",
        "three": "SetupFailed",
    }


def test_csv_has_a_line_for_each_episode(dgym, results):
    lines = list(csv.DictReader(io.StringIO(dgym("--output", "csv", "--price", "m-1=2:10").output)))
    assert [line["task"] for line in lines] == ["one", "three", "two"]
    assert lines[0]["cost"] == "3.0"
    assert lines[2]["cost"] == ""
    assert lines[0]["tools_seconds"] == "0.25"
    assert lines[1]["tools_seconds"] == ""


def test_two_runs_are_compared(dgym, play, results):
    for task in ("one", "two", "four"):
        play("other", task, EndReason.RESOLVED, steps=2)
    done = dgym("results", "--compare", "other")
    assert done.exit_code == 0, done.output
    printed = " ".join(done.output.split())  # without the line breaks of the terminal
    assert "Of 2 tasks in both, B is better at 1, worse at 0 and equal at 1." in printed
    assert "McNemar's exact test: p = 1" in printed
    assert "Only B has a score on four" in printed
    value = json.loads(dgym("results", "--compare", "other", "--output", "json").output)
    assert value["comparison"]["better"] == 1
    lines = list(csv.DictReader(io.StringIO(dgym("results", "--compare", "other", "--output", "csv").output)))
    assert [(line["task"], line["difference"]) for line in lines] == [("one", "0.0"), ("two", "1.0")]


def test_arms_are_compared_within_eighty_columns(dgym, play, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    labels = {"dgym.dev/repository": "django_django", "dgym.dev/difficulty": "15_min_-_1_hour"}
    for arm in ("with-pdb", "without"):
        for number in range(8):
            resolved = arm == "with-pdb" and number < 6
            reason = EndReason.RESOLVED if resolved else EndReason.MODEL_ERROR if number == 7 else EndReason.UNRESOLVED
            more = {"episode": f"s-{arm}-{number}", "arm": arm, "task_labels": labels, "price": "0.5"}
            play(f"results/{arm}", f"task-{number}", reason, input_tokens=100_000, **more)
    done = dgym()
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    lines = [line.split() for line in done.output.splitlines()]
    assert ["with-pdb", "6/7", "85.7", "48.7", "to", "97.4", "85.7", "1"] in lines
    assert any(
        line[:7] == ["without", "-", "with-pdb", "7", "0", "6", "-85.7"] and line[-1] == "0.0312" for line in lines
    )
    assert ["django_django", "with-pdb", "6/7", "85.7", "48.7", "to", "97.4"] in lines
    printed = " ".join(done.output.split())
    assert "Pairs left out, not scored under one arm or both: 1 of without - with-pdb." in printed
    value = json.loads(dgym("--output", "json", "--baseline", "without", "--by", "dgym.dev/difficulty").output)
    assert (value["armPairs"][0]["a"], value["armPairs"][0]["incomplete"]) == ("without", 1)
    assert {group["label"] for group in value["labels"]} == {"dgym.dev/difficulty"}
    assert value["episodes"][0]["arm"] == "with-pdb"
    refused = dgym("--baseline", "third")
    assert refused.exit_code == 2
    assert "the arm 'third' does not have results; these arms have: with-pdb, without" in refused.output


def test_reasons_are_shown_by_arm_so_that_an_imbalance_is_seen(dgym, play):
    ends = {"long": [EndReason.CONTEXT_EXHAUSTED] * 3 + [EndReason.RESOLVED], "short": [EndReason.RESOLVED] * 4}
    for arm, reasons in ends.items():
        for number, reason in enumerate(reasons):
            play(f"results/{arm}", f"task-{number}", reason, episode=f"s-{arm}-{number}", arm=arm)
    lines = [line.split() for line in dgym().output.splitlines()]
    first = lines.index(["Resolved", "long", "1", "25.0", "%"])
    assert lines[first : first + 4] == [
        ["Resolved", "long", "1", "25.0", "%"],
        ["short", "4", "100.0", "%"],
        ["ContextExhausted", "long", "3", "75.0", "%"],
        ["short", "0", "0.0", "%"],
    ]


def test_few_tasks_with_samples_are_not_shown_as_equal(dgym, play, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for run, arm in (("results", "with-pdb"), ("results", "without"), ("other", "with-pdb")):
        for number in range(6):
            sample = {"episode": f"s-{arm}-{number}", "arm": arm, "sample": number % 2}
            reason = EndReason.RESOLVED if number < 2 else EndReason.UNRESOLVED
            play(f"{run}/{arm}/{number % 2}", f"task-{number // 2}", reason, **sample)
    shown = dgym()
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert "without - with-pdb 3 0 0 +0.0 too few tasks 1" in lines
    assert "with-pdb 1 33.3 too few tasks 3" in lines
    compared = " ".join(dgym("results/with-pdb", "--compare", "other").output.split())
    assert "B - A: +0.0 points (too few tasks). Randomization test: p = 1." in compared
    (pair,) = json.loads(dgym("--output", "json").output)["armPairs"]
    assert pair["comparison"]["interval"] is None


def test_lists_of_episodes_name_their_run(dgym, play, results):
    play("other/nightly", "one", EndReason.UNRESOLVED)
    lines = csv.DictReader(io.StringIO(dgym("results", "other", "--output", "csv").output))
    assert [line["run"] for line in lines if line["task"] == "one"] == ["other/nightly", "results"]
    episodes = json.loads(dgym("results", "other", "--output", "json").output)["episodes"]
    assert {episode["run"] for episode in episodes} == {"results", "other/nightly"}


def test_agents_of_one_directory_can_be_compared(dgym, play, results):
    play("more", "one", EndReason.RESOLVED, agent="rewrite")
    done = dgym("results", "more", "--agent", "debug", "--compare", "more", "--compare-agent", "rewrite")
    assert "A: debug m-1: 1 of 2 resolved" in done.output
    assert "B: rewrite m-1: 1 of 1 resolved" in done.output


def test_mixed_agents_are_pointed_out_when_comparing(dgym, play, results):
    play("results", "five", EndReason.RESOLVED, agent="rewrite")
    assert "A mixes 2 agents or models; --agent picks one" in dgym("--compare", "results").output


def test_terminal_escapes_in_results_are_printed_as_text(dgym, play):
    play("results", "one[bold]\x1b[2J", EndReason.RESOLVED)
    output = dgym().output
    assert "one[bold]\\x1b[2J" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none"], "the directory does not exist"),
        (["results", "--price", "m-1"], "write MODEL=IN:OUT"),
        (["results", "--price", "m-1=2:nan"], "write MODEL=IN:OUT"),
        (["results", "--confidence", "95"], "--confidence"),
        (["results", "--agent", "dbug"], "these agents have: debug"),
        (["results", "--compare-agent", "debug"], "requires --compare"),
        (["--output", "xml"], "table"),
    ],
)
def test_usage_errors_exit_with_2_and_a_remedy(dgym, results, arguments, complaint):
    done = dgym(*arguments)
    assert done.exit_code == 2, done.output
    assert complaint in done.output


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_no_figure_is_cut_on_any_terminal(dgym, play, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    fields = {
        "agent": "rewrite_agent",
        "model": "a-model-of-long-name",
        "duration_seconds": 123456.0,
        "price": "1234.5",
    }
    play("results", "one", EndReason.RESOLVED, input_tokens=123_456_789, output_tokens=12_345_678, **fields)
    output = dgym("results").output
    for figure in ("123,456,789", "12,345,678", "1,234.50", "123,456.0", "20.7 to 100.0", "100.0"):
        assert figure in output
    assert "…" not in output
    compared = dgym("results", "--compare", "results").output
    assert "…" not in compared


def provenance(interpreter="3.11.7", numpy="1.26.4", **fields):
    reported = ReportedBySandbox(interpreter=interpreter, distributions={"attrs": "23.1.0", "numpy": numpy})
    model = ModelRecord(requested="m-1", sampling={"temperature": fields.pop("temperature", 0.5)})
    values = {"dgym_version": "0.1.0", "sandbox": "bubblewrap", "task_digest": "1f3a", "model": model, **fields}
    return Provenance(reported_by_sandbox=reported, **values)


def test_compared_runs_that_differ_are_named(dgym, play):
    for task in ("one", "two"):
        play("before", task, EndReason.RESOLVED, provenance=provenance(prompts={"system": "a" * 64}))
        other = provenance(
            "3.12.1", "2.0.1", temperature=0.7, prompts={"system": "b" * 64}, parameters={"treeDepth": 1}
        )
        play("after", task, EndReason.RESOLVED, provenance=other)
    same = dgym("before", "--compare", "before")
    assert "differ in" not in same.output
    assert "not recorded" not in same.output
    output = " ".join(dgym("before", "--compare", "after").output.split())
    assert (
        "Warning: A and B differ in: interpreter 3.11.7 / 3.12.1 (in 2 tasks); distributions numpy 1.26.4 / numpy 2.0.1"
        " (in 2 tasks); prompt system aaaaaaaaaaaa / bbbbbbbbbbbb (in 2 tasks); sampling temperature 0.5 / 0.7 (in 2"
        " tasks); parameter treeDepth - / 1 (in 2 tasks)."
    ) in output
    found = json.loads(dgym("before", "--compare", "after", "--output", "json").output)["comparison"]["provenance"]
    assert found[0] == {"name": "interpreter", "a": "3.11.7", "b": "3.12.1", "tasks": 2}


def test_results_of_earlier_versions_are_reported_as_not_recorded(dgym, play):
    play("old", "one", EndReason.RESOLVED)
    play("new", "one", EndReason.RESOLVED, provenance=provenance())
    (path,) = Path("old").glob("**/result.json")
    stored = json.loads(path.read_text())
    del stored["provenance"]
    path.write_text(json.dumps(stored))
    done = dgym("old", "--compare", "new")
    assert done.exit_code == 0, done.output
    assert "A: provenance not recorded for 1 episode." in done.output
    assert "differ in" not in done.output


def test_values_from_a_sandbox_are_printable_and_shortened(dgym, play):
    play("a", "one", EndReason.RESOLVED, provenance=provenance("\x1b]0;x\x07" + "9" * 500))
    play("b", "one", EndReason.RESOLVED, provenance=provenance())
    output = dgym("a", "--compare", "b").output
    assert "\x1b" not in output
    assert "9" * 70 not in output.replace("\n", "")
