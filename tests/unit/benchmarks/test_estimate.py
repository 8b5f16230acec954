"""Tests of the estimate for a set: figures that are counted, measured in earlier results, or assumed."""

import json

import pytest

from dgym.api import (
    AgentSpec,
    DebugTask,
    DebugTaskSpec,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    ObjectMeta,
    Resources,
    TaskRef,
    expand,
)
from dgym.cli.benchmark.estimating import estimate, in_short
from dgym.results import EpisodeRow, StageDurations
from dgym.results.report import Price
from dgym.wire import EndReason

AGENT = AgentSpec(name="a", model="m")


def planned(images, agent=AGENT, samples=2, **task):
    tasks = [
        DebugTask(metadata=ObjectMeta(name=f"t{number}"), spec=DebugTaskSpec(image=image, **task))
        for number, image in enumerate(images)
    ]
    spec = EpisodeSetSpec(
        tasks=tuple(TaskRef(name=one.metadata.name) for one in tasks),
        samples=samples,
        template=EpisodeSpec(agent=agent, active_deadline_seconds=1000),
    )
    return expand(EpisodeSet(metadata=ObjectMeta(name="s"), spec=spec), tasks)


def row(task, seconds, tokens=(0, 0), model="m", reason="Resolved", **more):
    numbers = dict.fromkeys(("sample", "attempt", "score", "max_score", "steps", "rewrites"), 0)
    return EpisodeRow(
        **numbers, namespace="local", episode=task, task=task, agent="a", model=model, digest="", resolved=True,
        reason=EndReason(reason), input_tokens=tokens[0], output_tokens=tokens[1], seconds=seconds, start_time="",
        path=f"{task}/{seconds}", **more,
    )  # fmt: skip


def test_without_history_hours_are_bounds_and_tokens_unknown():
    found = estimate(planned(["x", "y", "x"]), step_seconds=10, image_bytes=10**9)
    assert (found.pods.value, found.images.value, found.image_names) == (6, 2, ("x", "y"))
    assert (found.pull_bytes.value, found.pull_bytes.basis) == (2e9, "assumed")
    assert found.pod_hours.value == pytest.approx(6 * (50 * 10 + 300) / 3600)
    assert (found.input_tokens.value, found.cost.value) == (None, None)
    assert in_short(found) == "6 pods, 2 images, 2.0 GB to pull (assumed), 1.33 CPU hours (assumed)"
    long = estimate(planned(["x"], samples=1, resources=Resources(limits={"cpu": "500m"})), step_seconds=1000)
    assert (long.pod_hours.value, long.cpu_hours.value) == (1000 / 3600, 500 / 3600)


def test_estimates_use_earlier_results_of_the_same_agent_and_model():
    history = [
        row("t0", 100, (1000, 100), stages=StageDurations(prepare=5, model=60, queue=10, tools=20, agent=10, score=5)),
        row("t0", 300, (3000, 300)),
        row("t0", 9999, model="other"),
        row("t0", 7777, reason="SandboxLost"),
    ]
    found = estimate(planned([None, None], samples=1), history=history, prices={"m": Price(input=2, output=10)})
    assert found.pod_hours.value == pytest.approx(2 * (110 + 300) / 2 / 3600), "t1 is like all others"
    assert found.cpu_hours.value == pytest.approx(2 * (30 + 300) / 2 / 3600)
    assert (found.input_tokens.value, found.output_tokens.value) == (4000, 400)
    assert found.cost.value == pytest.approx((4000 * 2 + 400 * 10) / 1e6)
    assert {found.pod_hours.basis, found.cost.basis} == {"measured"}
    assert (found.images.value, found.pull_bytes.value, found.pull_bytes.basis) == (1, 0, "counted")


def test_a_token_budget_bounds_the_money():
    agent = AgentSpec(name="a", model="m", token_budget=1_000_000)
    found = estimate(planned(["x"], agent, samples=3), prices={"m": Price(input=2, output=10)})
    assert (found.cost.value, found.cost.basis) == (30, "assumed")
    assert estimate(planned(["x"], AgentSpec(name="solution"))).cost.value == 0


def test_the_command_shows_the_basis_of_each_figure(benchmark, import_rows, rows):
    import_rows(rows)
    done = benchmark("estimate", "mini", "--agent", "solution", "--samples", 4, "--output", "json")
    found = json.loads(done.stdout)
    assert (found["pods"]["value"], found["images"]["value"]) == (12, 3)
    assert found["imageNames"] == [each["image"] for each in rows]
    shown = benchmark("estimate", "mini", "--agent", "solution", "--image-size", 4).output
    assert "12.0 GB" in shown
    assert "4 GB (assumed) for each of 3 images" in shown


def test_render_prints_pods_images_and_bytes_and_counts_each_image_once(benchmark, import_rows, rows, tmp_path):
    import_rows([{**row, "image": image} for row, image in zip(rows, ("x", "y", "x"), strict=True)])
    done = benchmark("render", "mini", "--filter", "mini__*", "--limit", 3, "--output", tmp_path / "out")
    assert "3 pods, 2 images, 5.0 GB to pull (assumed)" in done.stderr
    found = json.loads(benchmark("estimate", "mini", "--output", "json").stdout)
    assert found["imageNames"] == ["x", "y"]
