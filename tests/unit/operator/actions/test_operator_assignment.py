import msgspec
import pytest

from dgym.api import DebugTask, PoisonedStep, loads
from dgym.wire.assignments import AssignmentMode
from dgym.wire.http import Role, ToolWithOptions, make_token
from dgym_operator.actions._reader import ConfigMapContent, Unmet, config_map_source, inline_task, with_files
from dgym_operator.dispatch._delivery import build_assignment, image_digest_of
from dgym_operator.objects import Pod
from dgym_operator.settings import Settings

EPISODE = """
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: fix, namespace: team, uid: u-1, labels: {dgym.dev/sample: "3", dgym.dev/arm: pdb}}
spec:
  task: {entrypoint: pytest, source: {files: [{path: a.py, content: "x"}]}}
  agent: {name: solution, maxSteps: 7}
  tools: [pdb, {name: bash, options: {timeoutSeconds: 5}}]
"""
TASK = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: t, namespace: team}
spec:
  source: {configMapRef: {name: files, items: [{key: calc, path: src/calc.py}, {key: logo, path: logo.png}]}}
"""
ATTEMPT = {
    "attempt": 2,
    "epoch": 5,
    "pod_name": "fix-2",
    "sidecar_url": "http://10.0.0.7:8080",
    "remaining_seconds": 90.0,
}


def load(text):
    (resource,) = loads(text)
    return resource


def test_an_assignment_has_all_fields():
    episode = load(EPISODE)
    given = build_assignment(episode, inline_task(episode), **ATTEMPT, key=b"key", settings=Settings())
    assert (given.namespace, given.episode, given.episode_uid, given.attempt, given.epoch) == (
        "team",
        "fix",
        "u-1",
        2,
        5,
    )
    assert given.drive_token == make_token(b"key", episode_uid="u-1", attempt=2, role=Role.DRIVE)
    assert given.prepare_token == make_token(b"key", episode_uid="u-1", attempt=2, role=Role.PREPARE)
    assert given.tools == ("pdb", ToolWithOptions(name="bash", options={"timeoutSeconds": 5}))
    assert given.agent is not None
    assert given.agent["maxSteps"] == 7
    assert (given.sample, given.arm) == (3, "pdb")
    assert given.mode is AssignmentMode.RUN
    task = msgspec.convert(given.task, DebugTask)
    assert (task.metadata.name, task.spec.entrypoint) == ("fix", "pytest")


@pytest.mark.parametrize(
    ("resources", "overrides", "limits"),
    [
        ("{limits: {memory: 512Mi}}", "{limits: {memory: 4Gi}}", {"memory": "4Gi", "ephemeral-storage": "10Gi"}),
        ("{}", "{requests: {memory: 3Gi}}", {"memory": "3Gi", "ephemeral-storage": "10Gi"}),
        ("{limits: {memory: 512Mi}}", "{limits: {cpu: 500m}}", {"memory": "512Mi"}),
        ("{}", "{limits: {memory: 2048Mi}}", {}),
    ],
)
def test_the_runner_gets_the_memory_limit_of_its_pod(resources, overrides, limits):
    text = EPISODE.replace("{entrypoint: pytest,", f"{{entrypoint: pytest, resources: {resources},")
    episode = load(f"{text}  podOverrides: {{resources: {overrides}}}\n")
    given = build_assignment(episode, inline_task(episode), **ATTEMPT, key=b"key", settings=Settings())
    assert msgspec.convert(given.task, DebugTask).spec.resources.limits == limits


def test_a_later_attempt_replays_an_earlier_one_without_its_poisoned_steps():
    episode = load(EPISODE)
    poisoned = (PoisonedStep(attempt=1, step=7, reason="OOMKilled"),)
    task = inline_task(episode)
    given = build_assignment(
        episode, task, **ATTEMPT, replay_attempt=1, poisoned_steps=poisoned, key=b"key", settings=Settings()
    )
    assert (given.replay_attempt, [(each.step, each.reason) for each in given.poisoned_steps]) == (
        1,
        [(7, "OOMKilled")],
    )


def test_without_a_task_it_recovers_a_stored_outcome():
    given = build_assignment(load(EPISODE), None, **ATTEMPT, key=b"key", settings=Settings())
    assert (given.mode, given.task) == (AssignmentMode.RECOVER, {})


def test_without_an_agent_it_only_prepares():
    episode = load(EPISODE.replace("  agent: {name: solution, maxSteps: 7}\n", ""))
    given = build_assignment(episode, inline_task(episode), **ATTEMPT, key=b"key", settings=Settings())
    assert given.mode is AssignmentMode.PREPARE
    assert given.agent is None


def test_a_config_map_becomes_files():
    task = load(TASK)
    source = config_map_source(task)
    content = ConfigMapContent(data={"calc": "x = 1\n", "other": "no"}, binary_data={"logo": "AAEC"})
    filled = with_files(task, source, content)
    assert [(file.path, file.data()) for file in filled.spec.source.files] == [
        ("src/calc.py", b"x = 1\n"),
        ("logo.png", b"\x00\x01\x02"),
    ]
    assert config_map_source(filled) is None


def test_without_items_every_key_is_a_file():
    task = load(TASK.replace(", items: [{key: calc, path: src/calc.py}, {key: logo, path: logo.png}]", ""))
    filled = with_files(task, config_map_source(task), ConfigMapContent(data={"b.py": "", "a.py": "1"}))
    assert [file.path for file in filled.spec.source.files] == ["a.py", "b.py"]


@pytest.mark.parametrize(("data", "problem"), [({"calc": ""}, "has no key 'logo'"), ({}, "has no key 'calc'")])
def test_a_missing_key_is_named(data, problem):
    task = load(TASK)
    with pytest.raises(Unmet, match=problem):
        with_files(task, config_map_source(task), ConfigMapContent(data=data))


def test_an_empty_config_map_is_refused():
    task = load(TASK.replace(", items: [{key: calc, path: src/calc.py}, {key: logo, path: logo.png}]", ""))
    with pytest.raises(Unmet, match="is empty"):
        with_files(task, config_map_source(task), ConfigMapContent())


@pytest.mark.parametrize(
    ("image_id", "digest"),
    [
        ("registry.example/team/task@sha256:1f3a", "sha256:1f3a"),
        ("sha256:1f3a", "sha256:1f3a"),
        ("", ""),
        ("x@" + "9" * 1000, "9" * 128),
    ],
)
def test_the_digest_of_the_image_is_read_from_the_pod_status(image_id, digest):
    statuses = [{"name": "sidecar", "imageID": "other@sha256:2"}, {"name": "sandbox", "imageID": image_id}]
    pod = msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": statuses}}, Pod)
    assert image_digest_of(pod) == digest
    assert image_digest_of(None) == ""
