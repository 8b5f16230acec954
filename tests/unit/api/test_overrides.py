import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import Episode, EpisodeSet, apply_overrides, loads
from dgym.errors import ManifestError

HEAD = "apiVersion: dgym.dev/v1alpha1\nmetadata: {name: x}\n"


@pytest.fixture
def episode() -> Episode:
    (resource,) = loads(HEAD + "kind: Episode\nspec: {task: {source: {files: [{path: a, content: b}]}}}\n")
    assert isinstance(resource, Episode)
    return resource


@pytest.fixture
def episodes() -> EpisodeSet:
    (resource,) = loads(HEAD + "kind: EpisodeSet\nspec: {tasks: [{name: a}], template: {agent: {name: human}}}\n")
    assert isinstance(resource, EpisodeSet)
    return resource


def test_no_override_changes_nothing(episode):
    assert apply_overrides(episode, []) is episode


def test_overriding_agent_fields_creates_the_agent(episode):
    changed = apply_overrides(episode, ["agent.model=gpt", "agent.name=human", "agent.maxSteps=7"])
    assert changed.spec.agent is not None
    assert (changed.spec.agent.name, changed.spec.agent.model, changed.spec.agent.max_steps) == ("human", "gpt", 7)
    assert episode.spec.agent is None
    assert changed.spec.task == episode.spec.task


def test_the_last_of_equal_overrides_applies(episode):
    assert apply_overrides(episode, ["priority=1", "priority=2"]).spec.priority == 2


def test_values_are_yaml_and_may_hold_equals_signs(episode):
    changed = apply_overrides(
        episode, ["task.env=[{name: A, value: 'b=c'}]", "task.entrypoint=env X=1 pytest", "tools=[pdb, view]"]
    )
    assert changed.spec.task is not None
    assert changed.spec.task.env[0].value == "b=c"
    assert changed.spec.task.entrypoint == "env X=1 pytest"
    assert changed.spec.tools == ("pdb", "view")


def test_numbers_are_accepted_unquoted_for_text_fields(episode):
    changed = apply_overrides(episode, ["agent={name: human}", "agent.temperature=0.2", "agent.model=7"])
    assert changed.spec.agent is not None
    assert (changed.spec.agent.temperature, changed.spec.agent.model) == ("0.2", "7")


def test_an_empty_value_restores_the_default(episode):
    changed = apply_overrides(episode, ["task.entrypoint=x", "task.entrypoint="])
    assert changed.spec.task is not None
    assert changed.spec.task.entrypoint == "python -m pytest -q"


def test_items_of_lists_and_keys_with_dots(episode):
    changed = apply_overrides(
        episode, ["task.source.files.0.path=c", "podOverrides.labels.example.com/team=a", "podOverrides.labels.b=c"]
    )
    assert changed.spec.task is not None
    assert changed.spec.task.source is not None
    assert changed.spec.task.source.files[0].path == "c"
    assert changed.spec.pod_overrides.labels == {"example.com/team": "a", "b": "c"}


def test_parameters_of_agents_are_free(episode):
    changed = apply_overrides(episode, ["agent.name=x", "agent.parameters.deep.er=3", "agent.parameters.t=a.jsonl"])
    assert changed.spec.agent is not None
    assert changed.spec.agent.parameters == {"deep": {"er": 3}, "t": "a.jsonl"}


def test_sets_address_their_template_and_themselves(episodes):
    changed = apply_overrides(episodes, ["agent.maxSteps=3", "set.samples=4", "priority=5"])
    assert changed.spec.template.agent is not None
    assert (changed.spec.template.agent.name, changed.spec.template.agent.max_steps) == ("human", 3)
    assert (changed.spec.samples, changed.spec.priority, changed.spec.template.priority) == (4, 0, 5)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("agent.modle=x", "did you mean 'agent.model'?"),
        ("agnt.name=x", "did you mean 'agent.name'?"),
        ("agent.max_steps=3", "did you mean 'agent.maxSteps'?"),
        ("maxSteps=3", "did you mean 'agent.maxSteps'?"),
        ("temprature=1", "did you mean 'agent.temperature'?"),
        ("agent.name.x=1", "unknown path"),
        ("qqq=1", "known paths begin with taskRef, task, agent,"),
        ("set.samples=3", "'set.' is for EpisodeSets"),
        ("agent", "does not have the form path=value"),
        ("=3", "does not have the form path=value"),
        ("tools=[", "not valid YAML"),
        ("agent.maxSteps=0", "agent.maxSteps: 0 is out of range; give a whole number from 1 to 10000"),
        ("agent.model=x", "agent.name: is missing"),
        ("tools.0=x", "set the whole list"),
        ("task.source.files.5.path=x", "a list of 1 items has no item '5'"),
        ("taskRef.name=x", "exactly one of taskRef and task"),
    ],
)
def test_a_wrong_override_is_explained(episode, assignment, expected):
    with pytest.raises(ManifestError) as caught:
        apply_overrides(episode, [assignment])
    assert f"-p {assignment}: " in str(caught.value)
    assert expected in str(caught.value)


def test_a_sets_own_field_is_recognised(episodes):
    with pytest.raises(ManifestError, match=r"did you mean 'set\.samples'\?"):
        apply_overrides(episodes, ["samples=3"])


@given(path=st.text(alphabet="agent.modlsk0/ ", max_size=14), value=st.text(max_size=10))
def test_any_override_is_applied_or_explained(path, value):
    (resource,) = loads(HEAD + "kind: Episode\nspec: {taskRef: {name: a}}\n")
    with contextlib.suppress(ManifestError):
        assert isinstance(apply_overrides(resource, [f"{path}={value}"]), Episode)
