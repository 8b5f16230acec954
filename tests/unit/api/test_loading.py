import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import DebugTask, Episode, EpisodeSet, load, load_documents, loads
from dgym.errors import ManifestError

EXAMPLES = Path(__file__).parents[3] / "examples"

HEAD = "apiVersion: dgym.dev/v1alpha1\n"
TASK = HEAD + "kind: DebugTask\nmetadata: {name: calc}\nspec:\n"
EPISODE = HEAD + "kind: Episode\nmetadata: {name: fix}\nspec:\n"
ARMS = "  tasks: [{name: a}]\n  template: {agent: {name: human}}\n  "
SET = HEAD + "kind: EpisodeSet\nmetadata: {name: many}\nspec:\n"


def refused(text: str, source: str = "some.yaml") -> str:
    with pytest.raises(ManifestError) as caught:
        loads(text, source=source)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_load(path):
    assert load(path)


def test_every_kind_with_its_defaults():
    task, episode, episodes = loads(
        f"{TASK}  {{}}\n---\n{EPISODE}  taskRef: {{name: calc}}\n---\n{SET}  tasks: [{{name: calc}}]\n"
    )
    assert isinstance(task, DebugTask)
    assert isinstance(episode, Episode)
    assert isinstance(episodes, EpisodeSet)
    assert task.spec.entrypoint == "python -m pytest -q"
    assert task.spec.entrypoint_timeout_seconds == 300
    assert task.spec.working_directory == "/workspace"
    assert episode.spec.active_deadline_seconds == 3600
    assert episode.spec.start_timeout_seconds == 900
    assert (episode.spec.backoff_limit, episode.spec.max_disruptions) == (2, 10)
    assert (episodes.spec.samples, episodes.spec.parallelism) == (1, 10)


def test_agent_defaults():
    (episode,) = loads(EPISODE + "  taskRef: {name: calc}\n  agent: {name: replay}\n")
    assert isinstance(episode, Episode)
    assert episode.spec.agent is not None
    assert episode.spec.agent.max_steps == 50
    assert episode.spec.agent.max_rewrites is None
    assert episode.spec.agent.token_budget is None


def test_null_is_the_default():
    (task,) = loads(TASK + "  activate:\n  env:\n  scoring:\n    failToPass:\n")
    assert isinstance(task, DebugTask)
    assert (task.spec.activate, task.spec.env, task.spec.scoring.fail_to_pass) == (None, (), ())


def test_empty_documents_are_skipped():
    assert len(loads(f"---\n# nothing here\n---\n{TASK}  {{}}\n---\n")) == 1


def test_tools_by_name_and_with_options():
    (episode,) = loads(EPISODE + "  task: {}\n  tools: [pdb, {name: bash, options: {timeoutSeconds: 5}}]\n")
    assert isinstance(episode, Episode)
    assert episode.spec.tools[0] == "pdb"
    assert not isinstance(episode.spec.tools[1], str)
    assert episode.spec.tools[1].options == {"timeoutSeconds": 5}


def test_json_and_lists_as_kubectl_writes_them(tmp_path):
    item = {
        "apiVersion": "dgym.dev/v1alpha1",
        "kind": "DebugTask",
        "metadata": {
            "name": "calc",
            "uid": "0f9c1a9e-5e0e-4a8f-a7c2-2f9d0c0f9a11",
            "resourceVersion": "12",
            "generation": 1,
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {},
    }
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [item]}))
    (task,) = load(file)
    assert task.metadata.uid == "0f9c1a9e-5e0e-4a8f-a7c2-2f9d0c0f9a11"
    item["spec"] = {"sorce": {}}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [item]}))
    with pytest.raises(ManifestError, match=r"document 1, items\[0\] \(DebugTask calc\).*did you mean 'source'"):
        load(file)


def test_local_path_is_relative_to_its_manifest(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.yaml").write_text(
        f"{TASK}  source: {{localPath: ../sub/repo}}\n---\n{EPISODE}  task: {{source: {{localPath: here}}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    task, episode = load("sub/m.yaml")
    assert isinstance(task, DebugTask)
    assert isinstance(episode, Episode)
    assert task.spec.source is not None
    assert task.spec.source.local_path == str(tmp_path / "sub" / "repo")
    assert episode.spec.task is not None
    assert episode.spec.task.source is not None
    assert episode.spec.task.source.local_path == str(tmp_path / "sub" / "here")


@pytest.mark.attack("local-path")
@pytest.mark.parametrize("form", ["../repo", "{outside}", "~/secrets", "link", "link/deeper", "here/../../repo"])
def test_local_path_stays_below_its_manifest_unless_allowed(tmp_path, monkeypatch, form):
    (tmp_path / "sub" / "here").mkdir(parents=True)
    (tmp_path / "repo" / "deeper").mkdir(parents=True)
    (tmp_path / "sub" / "link").symlink_to(tmp_path / "repo")
    monkeypatch.setenv("HOME", str(tmp_path))
    given = form.format(outside=tmp_path / "repo")
    file = tmp_path / "sub" / "m.yaml"
    for text, field in (
        (f"{TASK}  source: {{localPath: {given}}}\n", "spec.source.localPath"),
        (f"{EPISODE}  task: {{source: {{localPath: {given}}}}}\n", "spec.task.source.localPath"),
    ):
        file.write_text(text)
        with pytest.raises(ManifestError) as refused:
            load(file)
        assert f"{field}: '{given}' leads out of the manifest's directory" in str(refused.value)
        assert "--allow-local-path" in str(refused.value)
        with pytest.raises(ManifestError):
            load(file, allow_local_paths=[tmp_path / "sub"])
        assert load(file, allow_local_paths=[tmp_path / "repo", tmp_path / "secrets"])


def test_loaded_documents_have_file_and_number(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(f"{TASK}  {{}}\n---\n{EPISODE}  taskRef: {{name: calc}}\n")
    assert [(loaded.resource.kind, loaded.file, loaded.document) for loaded in load_documents(file)] == [
        ("DebugTask", str(file), 1),
        ("Episode", str(file), 2),
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  entrypont: x", ["line 5: spec.entrypont: unknown field", "did you mean 'entrypoint'?"]),
        ("  entry_point: x", ["did you mean 'entrypoint'?"]),
        ("  failToPass: [a]", ["spec.failToPass", "belongs at 'scoring.failToPass'"]),
        ("  blurb: x", ["spec.blurb: unknown field; known fields: activate,"]),
        ("  entrypointTimeoutSeconds: 0", ["0 is out of range; give a whole number from 1 to 3600"]),
        ("  entrypointTimeoutSeconds: 1.5", ["1.5 is not a whole number"]),
        ("  entrypointTimeoutSeconds: true", ["True is not a whole number"]),
        ("  requirements: numpy", ["spec.requirements: 'numpy' is not a list"]),
        ("  environment: {python: 3.9}", ["spec.environment.python: 3.9 is not text", 'quotes: "3.9"']),
        ("  environment: {python: '2.7'}", ["spec.environment.python: '2.7' is not valid", "'3.11'"]),
        (
            "  environment: {install: wheel}",
            ["spec.environment.install: 'wheel' is not allowed; use one of editable, none"],
        ),
        ("  environment: {systemPackages: ['a b']}", ["systemPackages[0]", "the name of a Debian package"]),
        (
            "  requirements: ['a==1 --hash=sha256:12']",
            ["spec.requirements[0]: 'a==1 --hash=sha256:12' is not valid", "--hash=sha256:' followed by 64 digits"],
        ),
        (f"  requirements: ['a>=1 --hash=sha256:{'0' * 64}']", ["is not valid", "an exact version with its hashes"]),
        (
            f"  environment: {{requirements: ['a==1 --hash=sha256:{'0' * 64}', b]}}",
            ["spec.environment.requirements[1]: 'b' has no hash, but others have hashes; give hashes for all"],
        ),
        (
            "  requirements: [a]\n  environment: {requirements: [b]}",
            ["spec.requirements: cannot be combined with 'environment.requirements'; keep exactly one of them"],
        ),
        ("  env: [{name: A, value: 1}]", ["spec.env[0].value: 1 is not text", 'quotes: "1"']),
        ("  env: [{value: x}]", ["spec.env[0].name: is missing"]),
        ("  env: [{name: A}, {name: A}]", ["spec.env[1]: variable 'A' is named twice"]),
        ("  workingDirectory: work", ["spec.workingDirectory: 'work' is not valid; give an absolute path"]),
        ("  scoring: {parser: junit}", ["'junit' is not allowed; use one of auto, exitStatus, pytest"]),
        ("  scoring: {stopWhenEvalPasses: maybe}", ["'maybe' is not true or false"]),
        ("  scoring: {failToPass: [test_a]}", ["failToPass[0]: 'test_a' is not valid", "tests/test_a.py::test_b"]),
        ("  scoring: {failToPass: ['a::b', 'a::b']}", ["failToPass[1]: test 'a::b' is named twice"]),
        ("  scoring: {failToPass: ['a::b'], passToPass: ['a::b']}", ["passToPass: 'a::b' is also in failToPass"]),
        ("  scoring: {failToPass: ['a::b'], parser: exitStatus}", ["spec.scoring.parser"]),
        ("  source: {git: {url: x, revision: main}}", ["spec.source.git.url: 'x' is not valid; give an address"]),
        ("  source: {archive: {url: 'https://x/y', sha256: ab}}", ["sha256", "64 lower-case hexadecimal digits"]),
        (
            "  source: {localPath: x, git: {url: 'https://x/y', revision: main}}",
            ["spec.source: git and localPath are given; at most one of files, configMapRef, git, archive, localPath"],
        ),
        ("  source: {files: [{path: a.py}]}", ["files[0]: a.py: give exactly one of content and contentBase64"]),
        ("  source: {files: [{path: a.py, content: '', contentBase64: ''}]}", ["give exactly one of content"]),
        ("  source: {files: [{path: a.py, contentBase64: '*'}]}", ["is not base64"]),
        ("  source: {files: [{path: /a.py, content: x}]}", ["a path relative to the repository's root"]),
        ("  source: {files: [{path: x/../a.py, content: x}]}", ["write the plain path"]),
        ("  source: {files: [{path: .git/config, content: x}]}", ["is in .git"]),
        (
            "  source: {files: [{path: a, content: x}, {path: a, content: y}]}",
            ["files[1].path: path 'a' is named"],
        ),
        ("  resources: {limits: {memory: 1 gig}}", ["spec.resources.limits.memory", "such as 2, '500m' or '1Gi'"]),
        ("  resources: {limits: {cpu: 0.5}}", ["spec.resources.limits.cpu: 0.5 is not text", 'quotes: "0.5"']),
    ],
)
def test_a_wrong_task_is_explained(spec, expected):
    message = refused(f"{TASK}{spec}\n")
    assert message.startswith("some.yaml: document 1 (DebugTask calc), line ")
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EPISODE + "  agent: {name: human}", "spec.taskRef: is missing; give exactly one of taskRef and task"),
        (EPISODE + "  taskRef: {name: a}\n  task: {}", "cannot be combined with 'task'"),
        (EPISODE + "  task: {}\n  agent: {name: a, temperature: 0.2}", 'put it in quotes: "0.2"'),
        (EPISODE + "  task: {}\n  agent: {name: a, maxSteps: 10001}", "a whole number from 1 to 10000"),
        (EPISODE + "  task: {}\n  maxSteps: 3", "'maxSteps' belongs at 'agent.maxSteps'"),
        (EPISODE + "  task: {}\n  tools: [pdb, {name: pdb}]", "tool 'pdb' is named twice"),
        (EPISODE + "  task: {}\n  activeDeadlineSeconds: 604801", "from 1 to 604800"),
        (SET + "  samples: 1", "give tasks or taskSelector"),
        (SET + "  tasks: [{name: a}]\n  taskSelector: {}", "exactly one of tasks and taskSelector"),
        (SET + "  tasks: [{name: a}, {name: a}]", "task 'a' is named twice"),
        (SET + "  tasks: [{name: a}]\n  samples: 1001", "from 1 to 1000"),
        (SET + "  tasks: [{name: a}]\n  template: {taskRef: {name: b}}", "remove this field"),
        (SET + "  tasks: [{name: a}]\n  arms: [{name: b}]", "spec.arms[0].agent.name: is missing"),
        (SET + "  tasks: [{name: a}]\n  arms: [{name: Debug}]", "lower-case letters, digits and '-'"),
        (SET + ARMS + "arms: [{name: b}, {name: b}]", "spec.arms[1].name: arm 'b' is named twice"),
        (SET + ARMS + "arms: [{name: b, tools: [pdb, pdb]}]", "spec.arms[0].tools[1]: tool 'pdb' is named twice"),
        (SET + ARMS + "arms: [{name: b, agent: {seed: 3}}]", "seed"),
        (SET + ARMS + f"arms: [{', '.join(f'{{name: a{n}}}' for n in range(17))}]", "at most 16"),
        (SET + "  taskSelector: {matchExpressions: [{key: a, operator: In}]}", "needs at least one value"),
        (SET + "  taskSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}", "takes no values"),
        (HEAD + "kind: Episod\nmetadata: {name: x}\nspec: {}", "did you mean 'Episode'?"),
        (HEAD + "kind: Pod\nmetadata: {name: x}\nspec: {}", "give DebugTask or Episode or EpisodeSet"),
        (HEAD + "metadata: {name: x}", "kind: is missing"),
        ("apiVersion: dgym.dev/v1\nkind: DebugTask\nmetadata: {name: x}\nspec: {}", "'dgym.dev/v1alpha1'?"),
        ("kind: DebugTask\nmetadata: {name: x}\nspec: {}", "apiVersion: is missing; give dgym.dev/v1alpha1"),
        (HEAD + "kind: DebugTask\nmetadata: {name: Not_A_Name}\nspec: {}", "lower-case letters"),
        (HEAD + 'kind: DebugTask\nmetadata: {name: "x\\n"}\nspec: {}', "lower-case letters"),
        (HEAD + "kind: DebugTask\nspec: {}", "metadata: is missing"),
        (HEAD + "kind: DebugTask\nmetadata: {name: x}", "spec: is missing"),
        (HEAD + "kind: DebugTask\nmetadata: {name: x, labels: {1: a}}\nspec: {}", "metadata.labels"),
        ("- a\n- b\n", "is not a manifest"),
        ("", "contains no manifest"),
        ("# only a comment\n", "contains no manifest"),
        (TASK + "  env: []\n  env: []\n", "line 6: spec.env: is given twice, first in line 5"),
        (TASK + "  env: &a [*a]\n", "an alias refers to a value that contains the alias"),
        (TASK + "  entrypoint: !!python/name:os.system x\n", "not valid YAML"),
    ],
)
def test_a_wrong_manifest_is_explained(text, expected):
    message = refused(text)
    assert message.startswith("some.yaml")
    assert expected in message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (TASK + "  env: [\n", "line 6"),
        (TASK + "\tenv: []\n", "line 5"),
        (TASK + "  env: 'x\n", "line 6"),
        (TASK + "  a: b: c\n", "line 5: not valid YAML at column 7"),
    ],
)
def test_syntax_errors_have_line_and_column(text, place):
    message = refused(text)
    assert place in message
    assert "at column" in message


def test_json_syntax_errors_have_line_and_column():
    assert "line 2: not valid JSON at column 1" in refused('{"kind":\n}', "x.json")
    assert "kind: is given twice" in refused('{"kind": "a", "kind": "b"}', "x.json")
    assert "nested more than 100 levels deep" in refused("[" * 100_000, "x.json")


def test_all_faults_are_reported_at_once():
    message = refused(f"{TASK}  sorce: {{}}\n  entrypointTimeoutSeconds: 0\n---\n{EPISODE}  tools: pdb\n---\nfoo: [\n")
    assert message.startswith("4 problems:")
    assert "document 1 (DebugTask calc), line 5" in message
    assert "document 1 (DebugTask calc), line 6" in message
    assert "document 2 (Episode fix), line 12: spec.tools" in message
    assert "document 3, line 15: not valid YAML" in message


def test_two_resources_of_one_name():
    assert "is also the name of document 1" in refused(f"{TASK}  {{}}\n---\n{TASK}  {{}}\n")


def test_inline_files_are_bounded_together():
    half = "x" * (100 * 1024)
    hidden = f"  scoring: {{hiddenFiles: [{{path: b, content: {half}}}]}}\n"
    assert loads(f"{TASK}  source: {{files: [{{path: a, content: {half}}}]}}\n{hidden}")
    message = refused(f"{TASK}  source: {{files: [{{path: a, content: {half}x}}]}}\n{hidden}")
    assert "204801 bytes, more than 204800" in message
    assert "configMapRef" in message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ManifestError, match="no such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(ManifestError, match="is a directory"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"kind: \xe9")
    with pytest.raises(ManifestError, match="not UTF-8 at byte 6"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_halves_of_surrogate_pairs_are_refused(name):
    with pytest.raises(ManifestError, match="a\\."):
        loads('{"apiVersion": "dgym.dev/v1alpha1", "kind": "\ud800"}', source=name)


@pytest.mark.parametrize(
    "value", ["!!timestamp soon", "!!int ''", "!!bool soon", "!!float ''", "!!timestamp 2001-99-99"]
)
def test_tags_that_do_not_fit_their_value_are_refused(value):
    with pytest.raises(ManifestError, match="not valid YAML"):
        loads(f"kind: {value}")


def test_times_and_colons_stay_text():
    (task,) = loads(TASK + "  env: [{name: A, value: 12:30}, {name: B, value: 2026-01-31}]\n")
    assert isinstance(task, DebugTask)
    assert [variable.value for variable in task.spec.env] == ["12:30", "2026-01-31"]


def test_shared_aliases_and_merge_keys():
    text = TASK + "  env: &e [{name: A, value: x}]\n  resources:\n    limits: &l {cpu: '1'}\n    requests: {<<: *l}\n"
    (task,) = loads(text)
    assert isinstance(task, DebugTask)
    assert task.spec.resources.requests == {"cpu": "1"}


def test_inline_bytes_and_modes():
    (task,) = loads(TASK + "  source: {files: [{path: a, contentBase64: AAH/, mode: 0755}, {path: b, content: é}]}\n")
    assert isinstance(task, DebugTask)
    assert task.spec.source is not None
    binary, text = task.spec.source.files
    assert (binary.data(), binary.mode) == (b"\x00\x01\xff", 0o755)
    assert (text.data(), text.mode) == ("é".encode(), 0o644)


_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_fields = st.sampled_from(
    ["kind", "apiVersion", "metadata", "spec", "status", "name", "source", "files", "tools", "agent", "task", "env"]
)


@given(
    st.sampled_from(["DebugTask", "Episode", "EpisodeSet"]),
    st.dictionaries(_fields, st.dictionaries(_fields, _data, max_size=4) | _data, max_size=5),
)
def test_any_data_loads_or_is_refused_by_name(kind, data):
    document = {"apiVersion": "dgym.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}, **data}
    message = "any.yaml"
    try:
        loads(yaml.safe_dump(document), source="any.yaml")
    except ManifestError as error:
        message = str(error)
    assert "any.yaml" in message


@given(st.text(max_size=60))
def test_any_text_loads_or_is_refused(text):
    with pytest.raises(ManifestError):
        loads(text)


def test_an_id_of_a_test_may_have_a_line_break():
    (task,) = loads(TASK + """  scoring: {failToPass: ["tests/a.py::test_b[one\\ntwo]"]}\n""")
    assert task.spec.scoring.fail_to_pass == ("tests/a.py::test_b[one\ntwo]",)
