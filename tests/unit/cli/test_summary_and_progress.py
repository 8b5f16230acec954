import json

from dgym.cli.run import ROWS, ProgressPrinter, counts, print_json, print_table, summary_line
from dgym.episodes import Finished, Logged, Started, Stepped, Waits
from dgym.wire import EndReason


def test_every_episode_is_counted_once(result):
    results = [
        result(EndReason.RESOLVED, 2),
        result(EndReason.STEP_LIMIT_REACHED, 1),
        result(EndReason.CANCELLED),
        result(EndReason.SETUP_FAILED),
        None,
    ]
    assert counts(results) == {"total": 5, "resolved": 1, "unresolved": 2, "failed": 1, "unfinished": 1}
    assert summary_line(results) == "5 episodes: 1 resolved, 2 unresolved, 1 failed, 1 without a result"
    assert summary_line(results[:1]) == "1 episode: 1 resolved, 0 unresolved, 0 failed"


def test_the_table_shows_outcomes_and_reasons_of_failures(job, result, capsys):
    failed = result(EndReason.SETUP_FAILED, message="pip failed [bold]\nmore\n\nERROR: no such package\n", attempt=2)
    print_table([job("good"), job("bad"), job("new")], [result(EndReason.RESOLVED, 2), failed, None], ["Episode z"])
    text = capsys.readouterr().out
    assert "good     calc  replay  Resolved       2/2" in text
    assert "no result" in text
    assert "bad: SetupFailed: pip failed [bold] … ERROR: no such package\n" in text
    assert "bad: log: results/local/bad/d/2/episode.log\n" in text
    assert "left out: Episode z" in text


def test_a_long_table_shows_only_what_failed(job, result, capsys):
    number = ROWS + 50
    results = [result(EndReason.RESOLVED, 2)] * (number - 1) + [result(EndReason.SANDBOX_LOST)]
    print_table([job(f"e{index}") for index in range(number)], results, [])
    text = capsys.readouterr().out
    assert f"e{number - 1}" in text
    assert "e7 " not in text
    assert f"{number - 1} more" in text


def test_json_has_every_episode_without_its_patch(job, result, capsys):
    stored = result(EndReason.RESOLVED, 2, patch="--- a/x", result_uri="file:///r")
    print_json([job("one"), job("two")], [stored, None], [])
    value = json.loads(capsys.readouterr().out)
    assert [episode["reason"] for episode in value["episodes"]] == ["Resolved", None]
    assert "patch" not in value["episodes"][0]
    assert value["episodes"][0]["resultURI"] == "file:///r"


def test_models_that_are_waited_for_are_shown_and_do_not_flood(job, capsys):
    progress = ProgressPrinter(total=3, verbose=False, live=False)
    limited = "waiting for the model: rate limited, try 3, again in 21 s"
    progress(job("one"), Waits(limited))
    for number in range(50):
        progress(job(f"e{number}"), Waits(limited))
    assert capsys.readouterr().err == f"one: {limited}\n"
    assert progress._waiting == f"{limited} (and 50 more)"
    for name in ("one", *(f"e{number}" for number in range(50))):
        progress(job(name), Waits(""))
    assert progress._waiting == ""


def events(result):
    return [
        Started("results/x"),
        Logged("making an environment", notice=True),
        Logged("making an environment", notice=True),
        Logged("a detail"),
        Stepped(1, "pdb", False, 0.25),
        Finished(result(EndReason.SETUP_FAILED, message="line one\nline two")),
    ]


def shown(job, result, capsys, *, verbose):
    progress = ProgressPrinter(total=3, verbose=verbose)
    for event in events(result):
        progress(job("one"), event)
    progress.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_progress_shows_common_notices_once(job, result, capsys):
    assert shown(job, result, capsys, verbose=False) == [
        "making an environment",
        "[1/3] one: SetupFailed 0/2, 0 steps, 0.0 s: line one line two",
    ]


def test_verbose_progress_shows_steps_and_the_log(job, result, capsys):
    lines = shown(job, result, capsys, verbose=True)
    assert "one: a detail" in lines
    assert "one: step 1: pdb (refused) 250 ms" in lines
