import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dgym.cli.app import COMMANDS, cli

TASK = """
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: calc}
spec:
  source: {files: [{path: calc.py, content: "x = 1"}]}
"""
EPISODE = """
apiVersion: dgym.dev/v1alpha1
kind: Episode
metadata: {name: one}
spec:
  taskRef: {name: calc}
  agent: {name: replay}
"""


@pytest.fixture
def dgym(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def run(*arguments):
        return runner.invoke(cli, list(arguments))

    return run


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(f"{TASK}\n---{EPISODE}")
    return str(path)


def test_help_names_every_command_with_the_line_its_module_has(dgym):
    text = dgym("--help").output
    for name, line in COMMANDS.items():
        assert name in text
        assert line in dgym(name, "--help").output


HEAVY = {
    *("aiohttp", "asyncio", "httpx", "kubernetes", "msgspec", "multiprocessing", "openai", "pathlib"),
    *("prompt_toolkit", "rich", "yaml"),
}
LIGHT = {"dgym", "dgym.cli", "dgym.errors", "dgym.lazy", "dgym.terminal"}


def test_help_of_the_group_imports_no_command():
    code = (
        "import sys\nfrom dgym.cli import main\ntry:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    arguments = [sys.executable, "-c", code, "--help"]
    # Coverage imports many modules if it measures subprocesses.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment)
    imported = set(done.stderr.split())
    assert "Usage: " in done.stdout
    assert not HEAVY & imported
    own = {module for module in imported if module.partition(".")[0] == "dgym"}
    assert {module for module in own if not module.startswith("dgym.cli.")} <= LIGHT
    assert {module for module in own if module.startswith("dgym.cli.")} == {"dgym.cli.app", "dgym.cli.output"}


def test_without_click_the_command_names_the_extra_to_install():
    code = "import sys\nsys.modules['click'] = None\nfrom dgym.cli import main\nmain()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == ("Error: the command line needs more packages; install them with: pip install 'dgym[cli]'\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["run"], "name at least one manifest"),
        (["run", "x.yaml", "--force", "--force-failed"], "--force"),
        (["run", "x.yaml", "--workers", "0"], "--workers"),
        (["run", "x.yaml", "--sandbox", "docker"], "bubblewrap"),
        (["run", "x.yaml", "--python", "/no/such/python"], "/no/such/python does not exist"),
        (["run", "none.yaml"], "none.yaml: no such file"),
        (["run", "-f", "empty"], "does not contain a manifest"),
        (["run", "x.yaml", "-p", "agent.maxStep=3"], "did you mean 'agent.maxSteps'?"),
        (["run", "x.yaml", "-p", "agent.maxSteps"], "path=value"),
        (["run", "x.yaml", "-p", "agent.maxSteps=0"], "agent.maxSteps"),
        (["run", "x.yaml", "--agent", "humam"], "did you mean 'human'?"),
        (["run", "x.yaml", "-p", "tools=[pbd]"], "pbd"),
        (["run", "x.yaml", "-p", "taskRef.name=clac"], "did you mean 'calc'?"),
        (["run", "empty"], "has no agent; add --agent NAME"),
        (["validate"], "name at least one manifest"),
        (["tools", "pbd"], "pbd"),
        (["replay"], "TRAJECTORY"),
        (["replay", "none.jsonl"], "cannot read the trajectory"),
        (["replay", "x.yaml"], "not a trajectory"),
    ],
)
def test_usage_errors_exit_with_2_and_a_remedy(dgym, manifest, tmp_path, arguments, complaint):
    (tmp_path / "empty").mkdir()
    done = dgym(*arguments)
    assert done.exit_code == 2, done.output
    assert "Error: " in done.output
    assert complaint in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "results").exists()


def test_validate_lists_what_is_valid(dgym, manifest):
    done = dgym("validate", manifest)
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"{manifest}: document 1: DebugTask calc: valid",
        f"{manifest}: document 2: Episode one: valid",
    ]


def test_validate_reports_the_faults_of_all_files(dgym, tmp_path):
    (tmp_path / "a.yaml").write_text(TASK.replace("source:", "sorce:"))
    (tmp_path / "b.yaml").write_text(EPISODE.replace("name: replay", "name: replay, maxSteps: 0"))
    done = dgym("validate", "-f", str(tmp_path))
    assert done.exit_code == 2
    assert "source" in done.output
    assert "spec.agent.maxSteps" in done.output


def test_validate_checks_every_arm(dgym, tmp_path):
    head = "apiVersion: dgym.dev/v1alpha1\nkind: EpisodeSet\nmetadata: {name: many}\nspec:\n  tasks: [{name: a}]\n"
    template = "  template: {agent: {name: solution}, tools: [pbd]}\n"
    arms = "  arms: [{name: one}, {name: two, tools: [viwe]}, {name: three, agent: {name: solutoin}}]\n"
    (tmp_path / "set.yaml").write_text(head + template + arms)
    done = dgym("validate", str(tmp_path / "set.yaml"))
    assert done.exit_code == 2
    assert [line.partition("spec.")[2].partition(":")[0] for line in done.stderr.splitlines() if "spec." in line] == [
        "template.tools[0]",
        "arms[1].tools[0]",
        "arms[2].agent.name",
    ]


def test_validate_checks_agents_tools_options_and_patches(dgym, tmp_path):
    spec = """
  agent: {name: replai}
  tools: [view, vieww, {name: grep, options: {nothing: 1}}]
  task:
    source: {files: [{path: calc.py, content: "x = 1"}]}
    solution: replace + by -
    scoring: {testPatch: "\\n"}
"""
    (tmp_path / "e.yaml").write_text(EPISODE.partition("spec:")[0] + "spec:" + spec)
    done = dgym("validate", str(tmp_path / "e.yaml"))
    assert done.exit_code == 2
    place = f"{tmp_path}/e.yaml: document 1 (Episode one): spec"
    for complaint in (
        f"{place}.agent.name: unknown agent 'replai'; did you mean 'replay'?",
        f"{place}.tools[1]: Unknown tool `vieww`. Did you mean `view`?",
        f"{place}.tools[2]: ",
        f"{place}.task.solution: 'replace + by -' is not a patch: ",
        f"{place}.task.scoring.testPatch: '\\n' does not change anything; ",
    ):
        assert complaint in done.output, done.output


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("nowhere.j2", "nowhere.j2 cannot be used"),
        ("mine.j2", "mine.j2 cannot be used: 'nothing' is undefined"),
        ("{inline: '{% if %}'}", "systemPrompt.inline:1 cannot be used"),
        ("{inlin: a}", "must be a path, or {inline: TEXT}"),
        ("{inline: '{{ task }} {{ instructions.pdb }}'}", None),
        ("good.j2", None),
    ],
)
def test_validate_and_run_read_prompt_templates(dgym, tmp_path, template, complaint):
    (tmp_path / "mine.j2").write_text("{{ nothing }}")
    (tmp_path / "good.j2").write_text('{% include "system.j2" %}')
    spec = f"""
  agent: {{name: debug_agent, model: human, parameters: {{systemPrompt: {template}}}}}
  task: {{source: {{files: [{{path: calc.py, content: "x = 1"}}]}}}}
"""
    (tmp_path / "e.yaml").write_text(EPISODE.partition("spec:")[0] + "spec:" + spec)
    done = dgym("validate", str(tmp_path / "e.yaml"))
    assert done.exit_code == (2 if complaint else 0), done.output
    if complaint:
        assert complaint in done.output
        assert dgym("run", str(tmp_path / "e.yaml")).exit_code == 2


def test_validate_refuses_a_task_without_a_repository(dgym, tmp_path):
    head = TASK.partition("spec:")[0]
    (tmp_path / "t.yaml").write_text(head + "spec: {entrypoint: python -m pytest -q}\n")
    done = dgym("validate", str(tmp_path / "t.yaml"))
    assert done.exit_code == 2
    assert "is missing, and image is missing too: the task needs a repository" in done.output


def test_validate_finds_the_same_tool_twice_in_a_set(dgym, tmp_path):
    text = """
apiVersion: dgym.dev/v1alpha1
kind: EpisodeSet
metadata: {name: many}
spec:
  tasks: [{name: calc}]
  template: {agent: {name: replay}, tools: [view, {name: "dgym.tools.view:View"}]}
"""
    (tmp_path / "s.yaml").write_text(text)
    done = dgym("validate", str(tmp_path / "s.yaml"))
    assert done.exit_code == 2
    assert "(EpisodeSet many): spec.template.tools: Two tools are named `view`" in done.output


def test_the_same_name_with_two_meanings_is_refused(dgym, tmp_path, manifest):
    (tmp_path / "y.yaml").write_text(TASK.replace("x = 1", "x = 2"))
    done = dgym("validate", manifest, str(tmp_path / "y.yaml"))
    assert done.exit_code == 2
    assert "is also in" in done.output


def test_tools_are_listed_and_shown(dgym):
    listed = dgym("tools").output
    assert all(name in listed for name in ("pdb", "rewrite", "view", "eval", "submit"))
    assert "command" in dgym("tools", "pdb").output
    assert json.loads(dgym("tools", "pdb", "--output", "json").output)["parameters"]["type"] == "object"
    assert len(json.loads(dgym("tools", "--output", "json").output)) >= 8


def test_the_page_of_a_tool_lists_its_options(dgym):
    lines = dgym("tools", "pdb").output.splitlines()
    options = lines[lines.index("Options of pdb:") + 1 : lines.index("Schema of the arguments:") - 1]
    assert [line.split(":")[0].strip() for line in options] == [
        "persistentBreakpoints",
        "autoList",
        "afterRewrites",
        "timeoutSeconds",
        "outputBytes",
    ]
    assert "listdir takes no options." in dgym("tools", "listdir").output
    described = json.loads(dgym("tools", "bash", "--output", "json").output)["options"]
    assert described["properties"]["outputBytes"]["default"] == 8192


@pytest.mark.parametrize("arguments", [["x.yaml"], ["repository"]])
def test_tasks_without_an_agent_are_answered_with_what_to_add(dgym, tmp_path, arguments):
    (tmp_path / "x.yaml").write_text(TASK)
    (tmp_path / "repository").mkdir()
    done = dgym("run", *arguments)
    assert done.exit_code == 2
    assert "has no agent; add --agent NAME (" in done.output
    assert "human is you at the keyboard" in done.output


@pytest.mark.parametrize("words", [("--agent", "relpay"), ("-p", "agent.name=relpay"), ("-p", "agent.name='relpay'")])
def test_an_agent_is_named_by_its_option_or_by_its_path(dgym, tmp_path, words):
    (tmp_path / "x.yaml").write_text(TASK)
    done = dgym("run", "x.yaml", *words)
    assert done.exit_code == 2
    assert "unknown agent 'relpay'; did you mean 'replay'?" in done.output


@pytest.mark.parametrize("words", [("--agent", "two words"), ("-p", "agent.name=[a]")])
def test_a_name_that_no_agent_can_have_is_a_fault_of_usage(dgym, tmp_path, words):
    (tmp_path / "x.yaml").write_text(TASK)
    done = dgym("run", "x.yaml", *words)
    assert done.exit_code == 2, done.output
    assert "spec.agent.name: " in done.output


def test_the_version_is_an_option_too(dgym):
    assert dgym("--version").output == dgym("version").output.splitlines()[0] + "\n"


def test_version_names_dgym_and_its_wire(dgym):
    assert set(json.loads(dgym("version", "--output", "json").output)) == {"dgym", "wire"}
    assert dgym("version").output.startswith("dgym ")


@pytest.mark.parametrize(
    "command",
    [["run", "--agent", "human"], ["submit", "--agent", "human"], ["check"], ["validate"]],
    ids=lambda command: command[0],
)
def test_a_manifest_reaches_no_directory_but_its_own(dgym, tmp_path, command):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "downloads").mkdir()
    text = TASK.replace('{files: [{path: calc.py, content: "x = 1"}]}', "{localPath: ../secrets}")
    (tmp_path / "downloads" / "x.yaml").write_text(text)
    refused = dgym(*command, "downloads/x.yaml")
    assert refused.exit_code == 2
    assert "spec.source.localPath: '../secrets' leads out of the manifest's directory" in refused.output
    assert f"--allow-local-path {tmp_path / 'secrets'}" in refused.output


def test_a_place_outside_can_be_allowed(dgym, tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "code" / "shop").mkdir(parents=True)
    text = TASK.replace('{files: [{path: calc.py, content: "x = 1"}]}', "{localPath: ../code/shop}")
    (tmp_path / "downloads" / "x.yaml").write_text(text)
    assert dgym("validate", "downloads/x.yaml", "--allow-local-path", "code").exit_code == 0
    assert dgym("validate", "downloads/x.yaml", "--allow-local-path", "code/shop/deeper").exit_code == 2
