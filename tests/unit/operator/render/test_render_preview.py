"""Tests of ``dgym-operator render``."""

import pytest
import yaml

from dgym.errors import ManifestError
from dgym_operator.render import TemplateError, render_command
from dgym_operator.settings import Settings

SETTINGS = Settings(sandbox_image="sandbox-python:1", sidecar_image="sidecar:1")
TASK = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: calc}
spec: {image: "calc:1", workingDirectory: /testbed, podTemplate: baseline}
"""
EPISODE = """
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: fix-calc, namespace: team}
spec: {taskRef: {name: calc}}
"""
SET = """
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata: {name: nightly}
spec: {tasks: [{name: calc}], samples: 4, template: {podTemplate: restricted}}
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def pods(text):
    return list(yaml.safe_load_all(text))


def test_the_task_may_be_in_a_separate_file(write):
    text = render_command([write("e.yaml", EPISODE)], task_paths=[write("t.yaml", TASK)], settings=SETTINGS)
    (pod,) = pods(text)
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("fix-calc-1", "team")
    sandbox = next(each for each in pod["spec"]["containers"] if each["name"] == "sandbox")
    assert sandbox["image"] == "calc:1"
    assert "runAsUser" not in sandbox["securityContext"], "the task names baseline"
    assert "&" not in text


def test_the_command_line_takes_precedence_over_the_episode_and_the_task(write):
    path = write("all.yaml", f"{TASK}---{EPISODE}")
    (pod,) = pods(render_command([path], template="restricted", settings=SETTINGS))
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["install", "copy"]
    path = write("all.yaml", f"{TASK}---{EPISODE.replace('spec: {', 'spec: {podTemplate: restricted, ')}")
    (pod,) = pods(render_command([path], settings=SETTINGS))
    assert pod["spec"]["initContainers"][1]["name"] == "copy"


def test_a_set_shows_its_first_episode(write):
    (pod,) = pods(render_command([write("all.yaml", f"{TASK}---{SET}")], settings=SETTINGS, namespace="here"))
    assert (pod["metadata"]["name"], pod["metadata"]["namespace"]) == ("nightly-0-1", "here")
    assert pod["metadata"]["labels"]["dgym.dev/set"] == "nightly"


def test_rendering_is_reproducible(write):
    path = write("all.yaml", f"{TASK}---{EPISODE}")
    assert render_command([path], settings=SETTINGS) == render_command([path], settings=SETTINGS)


def test_an_administrators_template(write, templates):
    directory = templates(
        "mine", '{% extends "restricted" %}\n{% block more %}\n  priorityClassName: low\n{% endblock %}'
    )
    path = write("all.yaml", f"{TASK}---{EPISODE}")
    settings = SETTINGS.model_copy(update={"pod_templates_directory": directory})
    (pod,) = pods(render_command([path], template="mine", settings=settings))
    assert pod["spec"]["priorityClassName"] == "low"


def test_missing_tasks_episodes_and_templates_are_reported(write):
    with pytest.raises(ManifestError, match="the DebugTask 'calc' was not found"):
        render_command([write("e.yaml", EPISODE)], settings=SETTINGS)
    with pytest.raises(ManifestError, match="contains neither an Episode nor an EpisodeSet"):
        render_command([write("t.yaml", TASK)], settings=SETTINGS)
    path = write("all.yaml", f"{TASK}---{EPISODE}")
    with pytest.raises(TemplateError, match="pod template 'restrictid' does not exist"):
        render_command([path], template="restrictid", settings=SETTINGS)
