import msgspec
import pytest

from dgym.results import EpisodeRow, StageDurations, TimedCall
from dgym.results.report import Price, Run, compare, make_report
from dgym.wire import EndReason


def record(task="t", resolved=True, *, failed=False, sample=0, **fields):
    reason = EndReason.SANDBOX_LOST if failed else EndReason.RESOLVED if resolved else EndReason.UNRESOLVED
    base = {"namespace": "local", "episode": f"{task}-{sample}", "agent": "a", "model": "m", "attempt": 1}
    numbers = {"score": 0, "max_score": 1, "steps": 1, "rewrites": 0, "input_tokens": 0, "output_tokens": 0}
    rest = {"digest": "d", "seconds": 1.0, "start_time": "", "path": f"/{task}/{sample}"}
    values = {**base, **numbers, **rest, "task": task, "resolved": resolved and not failed, "sample": sample}
    return EpisodeRow(reason=reason, **{**values, **fields})


def run(*records):
    return Run(records=records)


def test_rates_are_over_outcomes_and_failures_are_counted_apart():
    report = make_report(run(record(), record(resolved=False), record(failed=True, steps=99)))
    overall = report.overall
    assert (overall.episodes, overall.scored, overall.resolved, overall.failed) == (3, 2, 1, 1)
    assert overall.rate == 0.5
    assert overall.steps.median == 1
    assert overall.reasons == {"Resolved": 1, "SandboxLost": 1, "Unresolved": 1}
    assert overall.interval.low < 0.5 < overall.interval.high


def test_pass_at_1_weighs_every_task_the_same():
    easy = [record("easy", sample=sample) for sample in range(8)]
    report = make_report(run(*easy, record("hard", resolved=False), record("hard", resolved=True, sample=1)))
    assert report.overall.rate == 0.9
    assert report.overall.pass_at_1 == 0.75
    assert [(one.task, one.figures.rate) for one in report.tasks] == [("easy", 1.0), ("hard", 0.5)]


def test_agents_and_models_are_grouped_separately():
    report = make_report(run(record(agent="b"), record(agent="a", model="x"), record(agent="a", model="w")))
    assert [(one.agent, one.model) for one in report.agents] == [("a", "w"), ("a", "x"), ("b", "m")]


def test_a_cost_is_known_only_with_the_price_of_every_model():
    records = run(
        record(model="m", input_tokens=2_000_000, output_tokens=500_000),
        record(model="n", input_tokens=1_000_000),
        record(model="unused"),
    )
    prices = {"m": Price(input=1.5, output=4), "n": Price(input=10, output=0)}
    assert make_report(records, prices=prices).overall.cost == pytest.approx(15)
    assert make_report(records, prices={"m": prices["m"]}).overall.cost is None
    assert make_report(run(record()), prices=prices).overall.cost is None


def test_the_stored_price_takes_precedence_over_the_given_price():
    records = run(
        record(input_tokens=1_000_000, price=0.25),
        record(input_tokens=1_000_000, sample=1),
        record(price=9.0, sample=2),
    )
    assert make_report(records, prices={"m": Price(input=2, output=0)}).overall.cost == pytest.approx(2.25)
    assert make_report(records).overall.cost is None


def test_tools_are_counted_and_timed():
    calls = (TimedCall("pdb", True, 0.1), TimedCall("pdb", False, 0.3), TimedCall("eval", True, 2.0))
    report = make_report(run(record(calls=calls), record(calls=(TimedCall("pdb", True, 0.2),)), record()))
    pdb, evaluation = report.tools
    assert (pdb.tool, pdb.calls, pdb.refused, pdb.episodes, pdb.share_of_calls) == ("pdb", 3, 1, 2, 0.75)
    assert pdb.median_milliseconds == pytest.approx(200)
    assert evaluation.total_seconds == 2.0


def test_shares_of_stages_include_only_episodes_with_stages():
    stages = StageDurations(prepare=1, model=0, queue=0, tools=2, agent=3, score=4)
    report = make_report(run(record(stages=stages), record(stages=stages), record()))
    assert {one.stage: one.share for one in report.stages} == {"prepare": 0.1, "tools": 0.2, "agent": 0.3, "score": 0.4}
    assert {one.episodes for one in report.stages} == {2}
    assert make_report(run(record())).stages == ()


def test_a_report_of_only_failures_has_rate_0():
    report = make_report(run(record(failed=True)))
    assert (report.overall.scored, report.overall.rate, report.overall.pass_at_1) == (0, 0.0, 0.0)
    assert (report.overall.interval.low, report.overall.interval.high) == (0.0, 1.0)


def test_reports_are_json_in_camel_case():
    value = msgspec.json.decode(msgspec.json.encode(make_report(run(record()))))
    assert value["overall"]["passAt1"] == 1.0
    assert value["tasks"][0]["figures"]["inputTokens"]["total"] == 0


def test_comparing_pairs_tasks():
    a = run(*[record(f"t{n}", resolved=n < 2, steps=10) for n in range(8)], record("mine"), record("x", failed=True))
    b = run(*[record(f"t{n}", resolved=n != 0, steps=4) for n in range(8)], record("yours"), record("x"))
    found = compare(a, b)
    assert (found.better, found.worse, found.equal) == (6, 1, 1)
    assert found.p_value == pytest.approx(2 * (1 + 7) / 2**7)
    assert (found.only_a, found.only_b) == (("mine",), ("x", "yours"))
    assert {pair.task: pair.difference for pair in found.pairs}["t0"] == -1
    differences = {one.quantity: one.difference for one in found.differences}
    assert differences["steps"] == -6
    assert differences["resolved"] == pytest.approx(5 / 8)


def test_samples_of_a_task_are_one_observation():
    a = run(*[record(sample=n, resolved=n == 0) for n in range(4)])
    b = run(*[record(sample=n, resolved=n != 0) for n in range(4)])
    found = compare(a, b)
    assert (found.better, found.worse) == (1, 0)
    assert found.pairs[0].difference == 0.5
    assert found.p_value == 1.0
    assert found.interval is None
    assert found.summary.endswith("B - A: +50.0 points (too few tasks). Randomization test: p = 1.")


def test_runs_without_a_task_in_common_compare_to_nothing():
    found = compare(run(record("a")), run(record("b")))
    assert found.pairs == found.differences == ()
    assert found.p_value == 1.0


def arms(**outcomes):
    """Return rows of arms. Each character is a task: + resolved, - unresolved, x failed, blank without a row."""
    return [
        record(f"t{number}", resolved=mark == "+", failed=mark == "x", arm=arm, episode=f"s-{arm}-{number}")
        for arm, marks in outcomes.items()
        for number, mark in enumerate(marks)
        if mark != " "
    ]


def test_arms_are_compared_in_pairs_without_failed_episodes():
    report = make_report(run(*arms(pdb="++++++-x+ ", plain="-----+-++x")))
    assert [(one.arm, one.figures.resolved, one.figures.scored, one.figures.failed) for one in report.arms] == [
        ("pdb", 7, 8, 1),
        ("plain", 3, 9, 1),
    ]
    (pair,) = report.arm_pairs
    found = pair.comparison
    assert (pair.a, pair.b, pair.complete, pair.incomplete) == ("pdb", "plain", 8, 2)
    assert (found.better, found.worse, found.equal, found.test) == (0, 5, 3, "mcnemar")
    assert found.p_value == pair.p_adjusted == pytest.approx(2 / 2**5)
    assert found.difference == pytest.approx(-5 / 8)
    assert found.interval.low < -5 / 8 < found.interval.high


def test_a_sample_without_an_outcome_is_left_out_on_both_sides():
    rows = [record("a", resolved=sample < 2, sample=sample, arm="one") for sample in range(4)]
    rows += [record("a", failed=sample == 3, sample=sample, arm="two") for sample in range(4)]
    (pair,) = make_report(run(*rows)).arm_pairs
    assert (pair.complete, pair.incomplete, pair.comparison.test) == (3, 1, "randomization")
    assert pair.comparison.difference == pytest.approx(1 - 2 / 3)


def test_a_baseline_is_compared_with_each_other_arm():
    rows = run(*arms(a="+-+-", b="++++", c="----"))
    names = [(pair.a, pair.b) for pair in make_report(rows).arm_pairs]
    assert names == [("a", "b"), ("a", "c"), ("b", "c")]
    pairs = make_report(rows, baseline="b").arm_pairs
    assert [(pair.a, pair.b) for pair in pairs] == [("b", "a"), ("b", "c")]
    assert [pair.p_adjusted for pair in pairs] == [pytest.approx(0.5), pytest.approx(2 * 2 / 2**4)]


def test_pass_at_k_is_over_tasks_with_enough_outcomes():
    rows = [record("a", resolved=sample == 0, sample=sample, arm="x") for sample in range(5)]
    rows += [record("b", resolved=False, failed=sample == 4, sample=sample, arm="x") for sample in range(5)]
    (arm,) = make_report(run(*rows)).arms
    assert [(one.k, one.value, one.tasks) for one in arm.passes] == [
        (1, pytest.approx(0.1), 2),
        (2, pytest.approx(0.2), 2),
        (4, pytest.approx(0.4), 2),
        (5, 1.0, 1),
    ]
    assert make_report(run(record())).agents[0].passes == ()


def test_groups_by_the_labels_of_tasks():
    labels = {"dgym.dev/repository": "shop", "team": "red"}
    rows = run(
        record("a", arm="x", task_labels=labels), record("a", resolved=False, arm="y", task_labels=labels), record()
    )
    found = [(one.label, one.value, one.arm, one.figures.resolved) for one in make_report(rows).labels]
    assert found == [
        ("dgym.dev/repository", "", "", 1),
        ("dgym.dev/repository", "shop", "x", 1),
        ("dgym.dev/repository", "shop", "y", 0),
    ]
    assert {one.label for one in make_report(rows, by=["team"]).labels} == {"team"}
