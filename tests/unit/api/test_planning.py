import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import (
    AgentSpec,
    Arm,
    DebugTask,
    DebugTaskSpec,
    Episode,
    EpisodeSet,
    EpisodeSetSpec,
    EpisodeSpec,
    LabelRequirement,
    LabelSelector,
    ObjectMeta,
    TaskRef,
    child_name,
    digest,
    episodes_of,
    expand,
    find_task,
    loads,
    place_of,
)
from dgym.errors import ManifestError


def task(name: str, **labels: str) -> DebugTask:
    return DebugTask(metadata=ObjectMeta(name=name, labels=labels), spec=DebugTaskSpec(instructions=name))


def test_indexes_are_task_times_samples_plus_sample():
    episodes = EpisodeSet(
        metadata=ObjectMeta(name="many", namespace="lab", labels={"team": "a"}),
        spec=EpisodeSetSpec(
            tasks=(TaskRef(name="b"), TaskRef(name="a")),
            samples=2,
            template=EpisodeSpec(agent=AgentSpec(name="human")),
        ),
    )
    planned = expand(episodes, [task("a"), task("b"), task("c")])
    assert [(one.index, one.sample, one.task.metadata.name) for one in planned] == [
        (0, 0, "b"),
        (1, 1, "b"),
        (2, 0, "a"),
        (3, 1, "a"),
    ]
    first = planned[0].episode
    assert (first.metadata.name, first.metadata.namespace) == ("many-0", "lab")
    assert first.metadata.labels == {
        "team": "a",
        "dgym.dev/set": "many",
        "dgym.dev/task": "b",
        "dgym.dev/index": "0",
        "dgym.dev/sample": "0",
    }
    assert first.spec.task_ref == TaskRef(name="b")
    assert first.spec.agent == AgentSpec(name="human")
    assert len({one.digest for one in planned}) == 4


ARMS = """
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata: {name: pays}
spec:
  tasks: [{name: a}, {name: b}]
  samples: 2
  template: {agent: {name: human, model: m, seed: 5, parameters: {hint: "yes"}}, tools: [view, pdb, eval]}
  arms:
  - {name: pdb}
  - {name: plain, tools: [view, eval]}
  - {name: other, agent: {name: solution, maxSteps: 9}}
"""


def test_arms_of_one_task_and_sample_have_adjacent_indexes():
    (episodes,) = loads(ARMS)
    assert isinstance(episodes, EpisodeSet)
    planned = expand(episodes, [task("a"), task("b")])
    names = ("pdb", "plain", "other")
    assert [(one.sample, one.task.metadata.name, one.arm) for one in planned] == [
        (sample, name, arm) for sample in range(2) for name in "ab" for arm in names
    ]
    assert [one.index for one in planned] == list(range(12))
    assert [one.episode.metadata.name for one in planned[:4]] == [
        "pays-pdb-0",
        "pays-plain-0",
        "pays-other-0",
        "pays-pdb-1",
    ]
    assert planned[4].episode.metadata.labels["dgym.dev/arm"] == "plain"
    pdb, plain, other = (one.episode.spec for one in planned[:3])
    common = AgentSpec(name="human", model="m", seed=5, parameters={"hint": "yes"})
    assert (pdb.agent, pdb.tools) == (common, ("view", "pdb", "eval"))
    assert (plain.agent, plain.tools) == (common, ("view", "eval"))
    # The template's parameters are for the agent `human`, but its seed is for all agents.
    assert other.agent == AgentSpec(name="solution", model="m", seed=5, max_steps=9)
    assert len({one.digest for one in planned}) == 12


@given(tasks=st.integers(1, 20), samples=st.integers(1, 5), arms=st.integers(0, 16))
def test_every_place_has_one_index(tasks, samples, arms):
    spec = EpisodeSetSpec(samples=samples, arms=tuple(Arm(name=f"arm-{number}") for number in range(arms)))
    places = [place_of(spec, tasks, index) for index in range(episodes_of(spec, tasks))]
    assert len(set(places)) == len(places) == tasks * samples * max(1, arms)
    assert all(place.task < tasks and place.sample < samples for place in places)
    for index, place in enumerate(places):
        if place.arm is not None:
            assert place.arm is spec.arms[index % arms]


def test_selectors_choose_by_label_in_order_of_names():
    spec = EpisodeSetSpec(task_selector=LabelSelector(match_labels={"level": "easy"}))
    episodes = EpisodeSet(metadata=ObjectMeta(name="s"), spec=spec)
    tasks = [task("z", level="easy"), task("m", level="hard"), task("a", level="easy")]
    assert [one.task.metadata.name for one in expand(episodes, tasks)] == ["a", "z"]
    with pytest.raises(ManifestError, match="selects none of 1 tasks"):
        expand(episodes, [task("m", level="hard")])


def test_selected_tasks_with_the_same_image_are_adjacent():
    episodes = EpisodeSet(metadata=ObjectMeta(name="s"), spec=EpisodeSetSpec(task_selector=LabelSelector()))
    tasks = [
        DebugTask(metadata=ObjectMeta(name=name), spec=DebugTaskSpec(image=image))
        for name, image in zip("fdbace", "yxxxyz", strict=True)
    ]
    assert [one.task.metadata.name for one in expand(episodes, tasks)] == list("abdcfe")


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ("easy",), ["easy"]),
        ("NotIn", ("easy",), ["hard", "none"]),
        ("Exists", (), ["easy", "hard"]),
        ("DoesNotExist", (), ["none"]),
    ],
)
def test_operators_of_selectors(operator, values, expected):
    requirement = LabelRequirement(key="level", operator=operator, values=values)
    selector = LabelSelector(match_expressions=(requirement,))
    labels = {"easy": {"level": "easy"}, "hard": {"level": "hard"}, "none": {}}
    assert [name for name, of in labels.items() if selector.matches(of)] == expected
    assert LabelSelector().matches({})


def test_tasks_are_found_inline_or_by_name():
    inline = Episode(metadata=ObjectMeta(name="e"), spec=EpisodeSpec(task=DebugTaskSpec(instructions="x")))
    assert find_task(inline, []).metadata.name == "e"
    assert find_task(inline, []).spec.instructions == "x"
    named = Episode(metadata=ObjectMeta(name="e"), spec=EpisodeSpec(task_ref=TaskRef(name="ledgr")))
    with pytest.raises(ManifestError, match=r"the DebugTask 'ledgr' was not found; did you mean 'ledger'\?"):
        find_task(named, [task("ledger")])
    with pytest.raises(ManifestError, match="also give the manifest that contains it"):
        find_task(named, [])


@given(st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,120}[a-z0-9])?", fullmatch=True), st.integers(0, 10**7))
def test_names_of_children_are_short_valid_and_unique(name, index):
    child = child_name(name, index)
    assert len(child) <= 52
    assert child.endswith(f"-{index}")
    assert child[0].isalnum()
    assert child_name(name + "x", index) != child
    assert child_name(name, index) == child


def test_different_runs_have_different_digests():
    agent = AgentSpec(name="human")
    base = digest(task("a"), agent, 0)
    assert base == digest(task("a").spec, AgentSpec(name="human", max_steps=50), 0)
    assert base == digest(task("a", level="easy"), agent)
    others = [
        digest(task("b"), agent),
        digest(task("a"), None),
        digest(task("a"), AgentSpec(name="human", max_steps=51)),
        digest(task("a"), agent, 1),
        digest(task("a"), agent, tools=("pdb",)),
    ]
    assert len({base, *others}) == 6


def test_a_default_written_out_does_not_change_the_digest():
    written = msgspec.convert(
        {"instructions": "a", "entrypoint": "python -m pytest -q", "scoring": {"parser": "auto"}, "env": []},
        DebugTaskSpec,
    )
    assert digest(written, None) == digest(task("a"), None)
