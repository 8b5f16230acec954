import asyncio

import msgspec
import pytest

from dgym.api import Loaded, loads
from dgym.cli.manifests import override
from dgym.episodes import RunOptions, episodes_for, make_plan, unfinished
from dgym.errors import ManifestError, PluginError
from dgym.results import StoredResult, TrajectoryHeader
from dgym.wire import EndReason

TASK = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: NAME, labels: {suite: math}}
spec:
  source: {files: [{path: calc.py, content: "x = 1"}]}
"""
EPISODE = """
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: NAME}
spec:
  taskRef: {name: TASK}
  agent: {name: replay, parameters: {trajectory: walk.jsonl}}
"""
SET = """
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata: {name: all}
spec:
  tasks: [{name: add}, {name: sub}]
  samples: 2
  parallelism: 3
  template:
    agent: {name: replay}
"""


def task(name):
    return TASK.replace("NAME", name)


def episode(name, task_name="add"):
    return EPISODE.replace("NAME", name).replace("TASK", task_name)


@pytest.fixture
def plan(tmp_path):
    def make(*documents, bundled=(), **options):
        text = "\n---\n".join(documents)
        file = str(tmp_path / "x.yaml")
        loaded = [Loaded(one, file, number) for number, one in enumerate(loads(text, base=tmp_path), start=1)]
        options = RunOptions(results=str(tmp_path / "results"), **options)
        return make_plan(loaded, options=options, bundled=bundled)

    return make


def test_tasks_are_found_in_manifests_and_bundled_benchmarks(plan):
    bundled = loads(task("shipped"))
    jobs = plan(episode("one"), task("add"), episode("two", "shipped"), bundled=bundled).jobs
    assert [(job.episode, job.task.metadata.name) for job in jobs] == [("one", "add"), ("two", "shipped")]


def test_a_task_of_the_manifests_takes_precedence_over_a_bundled_task(plan):
    other = loads(task("add").replace("x = 1", "x = 2"))
    assert plan(episode("one"), task("add"), bundled=other).jobs[0].task != other[0]


def test_arms_run_side_by_side_with_the_same_seeds(plan):
    arms = "  arms: [{name: walk}, {name: gold, agent: {name: solution}}]"
    jobs = plan(task("add"), task("sub"), SET.replace("name: replay}", "name: replay, seed: 7}") + arms).jobs
    assert [(job.task.metadata.name, job.sample, job.arm) for job in jobs[:5]] == [
        ("add", 0, "walk"),
        ("add", 0, "gold"),
        ("sub", 0, "walk"),
        ("sub", 0, "gold"),
        ("add", 1, "walk"),
    ]
    assert [job.seed for job in jobs] == [7] * 4 + [8] * 4
    assert {job.agent.name for job in jobs if job.arm == "gold"} == {"solution"}


def test_the_command_line_names_no_agent_over_an_arms_own():
    arms = "  arms: [{name: walk}, {name: gold, agent: {name: solution}}]"
    (one,) = loads(SET + arms)
    with pytest.raises(
        ManifestError, match=r"arm gold names the agent solution itself.*-p set\.arms\.1\.agent\.name=human"
    ):
        override([Loaded(one, "x.yaml", 1)], ["agent.name=human"])
    (changed,) = override([Loaded(one, "x.yaml", 1)], ["agent.maxSteps=9", "set.arms.1.agent.name=replay"])
    assert changed.resource.spec.arms[1].agent.name == "replay"


def test_a_set_gives_every_task_its_samples(plan):
    jobs = plan(task("add"), task("sub"), SET).jobs
    assert [(job.task.metadata.name, job.sample) for job in jobs] == [("add", 0), ("add", 1), ("sub", 0), ("sub", 1)]
    assert len({job.episode for job in jobs}) == 4
    assert jobs[0].digest != jobs[1].digest
    assert {job.parallelism for job in jobs} == {3}
    assert len({job.group for job in jobs}) == 1


def test_jobs_are_ordered_by_priority(plan):
    urgent = episode("urgent").replace("spec:", "spec:\n  priority: 5")
    assert [job.episode for job in plan(task("add"), episode("a"), urgent, episode("b")).jobs] == ["urgent", "a", "b"]


@pytest.mark.parametrize("field", ["suspend: true", "cancel: true"])
def test_suspended_and_cancelled_episodes_are_left_out_by_name(plan, field):
    made = plan(task("add"), episode("one").replace("spec:", f"spec:\n  {field}"))
    assert made.jobs == ()
    assert "one" in made.left_out[0]


@pytest.mark.parametrize(
    ("documents", "complaint"),
    [
        ([episode("one", "ad"), task("add")], "did you mean 'add'"),
        ([task("add")], "DebugTask add has no agent; add --agent NAME"),
        ([task("add"), episode("one").replace("agent:", "priority: 1 #")], "--agent NAME"),
        (
            [task("add").replace('files: [{path: calc.py, content: "x = 1"}]', "localPath: gone"), episode("one")],
            "gone",
        ),
    ],
)
def test_documents_that_cannot_run_are_refused_with_a_remedy(plan, documents, complaint):
    with pytest.raises(ManifestError, match=complaint):
        plan(*documents)


def test_unknown_agents_and_tools_are_found_before_anything_runs(plan):
    with pytest.raises(PluginError, match="did you mean 'replay'"):
        plan(task("add"), episode("one").replace("name: replay", "name: reply"))
    with pytest.raises(PluginError, match="viwe"):
        plan(task("add"), episode("one").replace("spec:", "spec:\n  tools: [viwe]"))


def test_the_digest_follows_the_files_that_the_manifest_only_names(plan, tmp_path):
    (tmp_path / "repository").mkdir()
    code = tmp_path / "repository" / "calc.py"
    code.write_text("x = 1")
    local = task("add").replace('files: [{path: calc.py, content: "x = 1"}]', "localPath: repository")

    def digest():
        return plan(local, episode("one")).jobs[0].digest

    first = digest()
    assert digest() == first
    (tmp_path / "repository" / "__pycache__").mkdir()
    (tmp_path / "repository" / "__pycache__" / "calc.pyc").write_text("noise")
    assert digest() == first
    code.write_text("x = 2")
    second = digest()
    assert second != first
    (tmp_path / "walk.jsonl").write_text('{"tool": "eval"}\n')
    assert digest() not in (first, second)


def test_only_unfinished_episodes_run(plan):
    jobs = plan(task("add"), *(episode(name) for name in ("fine", "failed", "torn", "fresh"))).jobs
    by_name = {job.episode: job for job in jobs}
    for name, reason in (("fine", EndReason.UNRESOLVED), ("failed", EndReason.SANDBOX_LOST)):
        asyncio.run(by_name[name].new_record().finish(StoredResult(resolved=False, reason=reason)))
    by_name["torn"].new_record().begin(TrajectoryHeader())

    def names(**options):
        return [job.episode for job in unfinished(jobs, **options)]

    assert names() == ["torn", "fresh"]
    assert names(force_failed=True) == ["failed", "torn", "fresh"]
    assert names(force=True) == ["fine", "failed", "torn", "fresh"]


def test_tasks_alone_get_an_episode_each(tmp_path):
    tasks = [Loaded(one, str(tmp_path / "x.yaml"), 1) for one in loads(task("add"))]
    made = override(episodes_for(tasks), ["agent.name=human"])
    assert [(one.resource.metadata.name, one.resource.spec.agent.name) for one in made] == [("add", "human")]


def test_jobs_can_be_pickled(plan):
    import pickle

    job = plan(task("add"), episode("one")).jobs[0]
    assert pickle.loads(pickle.dumps(job)) == job
    assert msgspec.to_builtins(job)["episode"] == "one"
