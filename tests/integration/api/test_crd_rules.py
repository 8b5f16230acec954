"""Tests of the rules between fields: the server refuses a manifest that breaks a rule, with a helpful message."""

import pytest

from dgym.api import INLINE_LIMIT

REF = {"taskRef": {"name": "a"}}
TASKS = {"tasks": [{"name": "a"}]}
AGENT = {"agent": {"name": "a"}}
ARMS = {
    **TASKS,
    "template": AGENT,
    "arms": [
        {"name": "a", "tools": ["pdb"]},
        {"name": "b", "agent": {"maxSteps": 7, "parameters": {"x": {"y": 1}}}},
    ],
}
UNCHANGEABLE = "cannot be changed; delete the {0} and create it again, or create another {0}"


def inline(**fields):
    return {"source": {"files": [{"path": "a.py", **fields}]}}


def selecting(operator, values):
    return {"taskSelector": {"matchExpressions": [{"key": "suite", "operator": operator, "values": values}]}}


BROKEN = [
    ("Episode", {}, "spec", "taskRef is missing; give exactly one of taskRef and task"),
    ("Episode", {**REF, "task": {}}, "spec", "taskRef and task are both given; keep exactly one of them"),
    ("EpisodeSet", {}, "spec", "tasks is missing; give tasks or taskSelector ('{}' selects every task)"),
    ("EpisodeSet", {"tasks": []}, "spec", "tasks is missing; give tasks or taskSelector ('{}' selects every task)"),
    (
        "EpisodeSet",
        {**TASKS, "taskSelector": {}},
        "spec",
        "tasks and taskSelector are both given; keep exactly one of them",
    ),
    (
        "EpisodeSet",
        {**TASKS, "template": {"task": {"image": "a"}}},
        "spec.template",
        "a set's tasks come from tasks or taskSelector; remove task and taskRef from the template",
    ),
    (
        "EpisodeSet",
        {**TASKS, "template": REF},
        "spec.template",
        "a set's tasks come from tasks or taskSelector; remove task and taskRef from the template",
    ),
    (
        "EpisodeSet",
        {**TASKS, "template": {"tools": ["pdb"]}, "arms": [{"name": "a", "agent": {"name": "a"}}, {"name": "b"}]},
        "spec.arms",
        "an arm's agent.name is missing; name an agent in each arm or in template.agent",
    ),
    (
        "EpisodeSet",
        {**TASKS, "pool": {"minIdle": 2, "maxIdle": 1}},
        "spec.pool.maxIdle",
        "must not be less than minIdle",
    ),
    ("SandboxPool", {**REF, "minIdle": 2, "maxIdle": 1}, "spec.maxIdle", "must not be less than minIdle"),
    (
        "EpisodeSet",
        selecting("In", []),
        "spec.taskSelector.matchExpressions[0].values",
        "is empty; operators In and NotIn need at least one value",
    ),
    (
        "EpisodeSet",
        selecting("Exists", ["a"]),
        "spec.taskSelector.matchExpressions[0].values",
        "operators Exists and DoesNotExist take no values; remove them",
    ),
    (
        "DebugTask",
        {"requirements": ["a"], "environment": {"requirements": ["b"]}},
        "spec.requirements",
        "requirements and environment.requirements are both given; keep exactly one of them",
    ),
    (
        "DebugTask",
        {"environment": {"requirements": ["a==1 --hash=sha256:" + "0" * 64, "b"]}},
        "spec.environment.requirements",
        "some requirements have hashes and others do not; give hashes for all requirements or for none",
    ),
    ("DebugTask", inline(), "spec.source.files[0]", "give exactly one of content and contentBase64"),
    (
        "DebugTask",
        inline(content="", contentBase64=""),
        "spec.source.files[0]",
        "give exactly one of content and contentBase64",
    ),
    (
        "DebugTask",
        {"source": {"git": {"url": "https://a", "revision": "b"}, "archive": {"url": "https://a", "sha256": "0" * 64}}},
        "spec.source",
        "at most one of files, configMapRef, git, archive, localPath can be given",
    ),
    (
        "DebugTask",
        {"source": {"localPath": "a", "files": [{"path": "a", "content": ""}]}},
        "spec.source",
        "at most one of files, configMapRef, git, archive, localPath can be given",
    ),
    *(
        (
            "DebugTask",
            {"scoring": {"hiddenFiles": [{"path": path, "content": ""}]}},
            "spec.scoring.hiddenFiles[0].path",
            "has an empty, '.' or '..' part; write the plain path, such as src/calc.py",
        )
        for path in ("a/../b", "../b", "a/..", "./a", "a//b", "a/", "..")
    ),
    (
        "DebugTask",
        {"source": {"configMapRef": {"name": "a", "items": [{"key": "a", "path": "b/.git/config"}]}}},
        "spec.source.configMapRef.items[0].path",
        "is in .git, which is never delivered; remove it",
    ),
    (
        "DebugTask",
        {"scoring": {"parser": "exitStatus", "passToPass": ["a::b"]}},
        "spec.scoring.parser",
        "exitStatus does not report single tests; remove failToPass and passToPass or use pytest",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "field", "message"), BROKEN)
def test_a_broken_rule_is_named(refused, kind, spec, field, message):
    assert f"{field}: Invalid value: {message}" in refused(kind, spec)


def test_rules_of_a_task_apply_to_inline_tasks(refused):
    assert refused("Episode", {"task": inline()}) == [
        "spec.task.source.files[0]: Invalid value: give exactly one of content and contentBase64"
    ]


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("DebugTask", {"env": [{"name": "A"}, {"name": "A"}]}, "spec.env[1]"),
        ("DebugTask", {"scoring": {"failToPass": ["a::b", "b::b", "a::b"]}}, "spec.scoring.failToPass[2]"),
        ("DebugTask", {"source": {"files": [{"path": "a", "content": str(n)} for n in "12"]}}, "spec.source.files[1]"),
        ("EpisodeSet", {"tasks": [{"name": "a"}, {"name": "a"}]}, "spec.tasks[1]"),
        ("EpisodeSet", {**TASKS, "template": AGENT, "arms": [{"name": "a"}, {"name": "a"}]}, "spec.arms[1]"),
    ],
)
def test_duplicate_items_are_refused(refused, kind, spec, field):
    (cause, *_) = refused(kind, spec)
    assert cause.startswith(f"{field}: Duplicate value")


def sized(size):
    half = size // 2
    return {
        "source": {"files": [{"path": "a", "content": "a" * half}]},
        "scoring": {"hiddenFiles": [{"path": "b", "contentBase64": "QUFB" * ((size - half) // 3)}]},
    }


def test_inline_files_have_a_size_in_total(kinds, refused, api_namespace):
    fitting = sized(INLINE_LIMIT)
    assert kinds.create(api_namespace, kinds.manifest("DebugTask", fitting), dry_run=True)[0] == 201
    (cause,) = refused("Episode", {"task": sized(INLINE_LIMIT + 6)})
    assert f"contain more than {INLINE_LIMIT} bytes; move them to a ConfigMap (configMapRef)" in cause


def test_the_name_of_an_episode_leaves_room_for_the_attempt(kinds, refused, api_namespace):
    fitting = kinds.manifest("Episode", REF, "a" * 58)
    assert kinds.create(api_namespace, fitting, dry_run=True)[0] == 201
    (cause,) = refused("Episode", REF, name="a" * 59)
    assert "metadata.name of an Episode can have at most 58 characters, because pod names start with it" in cause


@pytest.fixture
def changed(kinds, api_namespace):
    """A function that changes a stored object. Returns None, or the causes for which the server refuses the change."""

    def change(kind, spec, patch):
        status, answer = kinds.create(api_namespace, kinds.manifest(kind, spec))
        assert status == 201, answer
        status, answer = kinds.patch(api_namespace, kind, "a", {"spec": patch})
        if status == 200:
            return None
        assert status == 422, answer
        return kinds.causes(answer)

    return change


@pytest.mark.parametrize(
    ("field", "spec", "change"),
    [
        ("taskRef", REF, {"name": "b"}),
        ("task", {"task": {"instructions": "a"}}, {"instructions": "b"}),
        ("task", {"task": {"scoring": {"failToPass": ["a::a"]}}}, {"scoring": {"failToPass": ["b::b"]}}),
        ("agent", REF, {"name": "a"}),
        ("agent", {**REF, "agent": {"name": "a"}}, None),
        ("agent", {**REF, "agent": {"name": "a"}}, {"maxSteps": 7}),
        ("agent", {**REF, "agent": {"name": "a", "parameters": {"x": {"y": 1}}}}, {"parameters": {"x": {"y": 2}}}),
        ("startTimeoutSeconds", REF, 5),
        ("activeDeadlineSeconds", REF, 5),
        ("backoffLimit", REF, 5),
        ("maxDisruptions", REF, 5),
        ("podTemplate", REF, "baseline"),
        ("podOverrides", REF, {"labels": {"a": "b"}}),
    ],
)
def test_fields_of_an_episode_cannot_be_changed(changed, field, spec, change):
    assert changed("Episode", spec, {field: change}) == [
        f"spec.{field}: Invalid value: {UNCHANGEABLE.format('Episode')}"
    ]


def test_an_episode_keeps_its_kind_of_task(changed):
    causes = changed("Episode", REF, {"taskRef": None, "task": {}})
    assert [cause.partition(":")[0] for cause in causes] == ["spec.taskRef", "spec.task"]


@pytest.mark.parametrize(
    ("field", "spec", "change"),
    [
        ("taskSelector", {"taskSelector": {}}, {"matchLabels": {"a": "b"}}),
        ("tasks", TASKS, [{"name": "b"}]),
        ("samples", TASKS, 2),
        ("template", TASKS, {"agent": {"name": "a"}}),
        ("template", {**TASKS, "template": {"tools": ["pdb"]}}, {"tools": ["pdb", "bash"]}),
        ("arms", {**TASKS, "template": AGENT}, [{"name": "a"}]),
        ("arms", ARMS, None),
        ("arms", ARMS, [*ARMS["arms"], {"name": "c"}]),
        ("arms", ARMS, ARMS["arms"][::-1]),
        ("arms", ARMS, [{"name": "a", "tools": ["pdb", "bash"]}, ARMS["arms"][1]]),
        ("arms", ARMS, [ARMS["arms"][0], {"name": "b", "agent": {"maxSteps": 8, "parameters": {"x": {"y": 1}}}}]),
        ("arms", ARMS, [ARMS["arms"][0], {"name": "b", "agent": {"maxSteps": 7, "parameters": {"x": {"y": 2}}}}]),
        ("priority", TASKS, 1),
    ],
)
def test_fields_of_a_set_cannot_be_changed(changed, field, spec, change):
    assert changed("EpisodeSet", spec, {field: change}) == [
        f"spec.{field}: Invalid value: {UNCHANGEABLE.format('EpisodeSet')}"
    ]


def test_a_task_cannot_be_changed(changed):
    (cause,) = changed("DebugTask", {"instructions": "a"}, {"instructions": "b"})
    remedy = "create a DebugTask with another name, or delete this DebugTask first"
    assert cause == f"spec: Invalid value: a DebugTask cannot be changed; {remedy}"


@pytest.mark.parametrize(
    ("kind", "spec", "patch"),
    [
        ("Episode", REF, {"suspend": True, "cancel": True, "ttlSecondsAfterFinished": 5, "priority": 3}),
        ("Episode", {**REF, "ttlSecondsAfterFinished": 5, "suspend": True},
         {"ttlSecondsAfterFinished": None, "suspend": False}),
        ("EpisodeSet", TASKS,
         {"parallelism": 0, "suspend": True, "cancel": True, "maxFailed": 3, "costLimit": "7",
          "ttlSecondsAfterFinished": 5}),
    ],
)  # fmt: skip
def test_fields_that_can_be_changed(changed, kind, spec, patch):
    assert changed(kind, spec, patch) is None


@pytest.mark.parametrize(("kind", "spec"), [("Episode", REF), ("EpisodeSet", TASKS)])
def test_a_cancellation_cannot_be_undone(changed, kind, spec):
    assert changed(kind, {**spec, "cancel": True}, {"cancel": False}) == [
        "spec.cancel: Invalid value: false: cancel cannot be undone; it stays true"
    ]
