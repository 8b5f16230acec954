import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgym.api import DebugTask, Episode, EpisodeSet, load
from dgym.cli.app import cli
from dgym.cli.migrate import KEYS, Migration

CONFIG = """
base:
    output_path: "exps/thing"
    env_kwargs: {
        "path": "data/thing",
        "entrypoint": "python -m pytest -sv test.py",
        "debug_entrypoint": "python -m pdb -m pytest -s test.py",
        "dir_tree_depth": 1,
        "run_on_rewrite": True,
        "auto_view_change": True,
        "run_timeout": 10,
    }
    terminal: {type: "docker", base_image: "python:3.12-slim", setup_commands: ["pip install pytest numpy"]}
    persistent_breakpoints: False
    auto_list: True
    llm_name: "gpt-4o"
    llm_temperature: [0.5]
    random_seed: 42
    max_steps: 100
    max_rewrite_steps: 10
    memory_size: 20
    save_patch: True
    reset_prompt_history_after_rewrite: True

rewrite_agent:
    tools: ["eval", "view", "rewrite"]

debug_agent:
    tools: ["eval", "pdb", "view", "patcher:substitution"]
    max_steps: 30

debug_5_agent:
    n_rewrites_before_pdb: 5
    tools: [{pdb: {auto_list: false}}, "view", "edit", "teleport"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "data" / "thing").mkdir(parents=True)
    (tmp_path / "scripts" / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def migrate(*arguments):
    return CliRunner().invoke(cli, ["migrate", *map(str, arguments)])


def converted(folder, text, *arguments):
    """Return the resources that ``text`` is converted to, and the report on standard error."""
    (folder / "x.yaml").write_text(text)
    done = migrate("x.yaml", "--output", "out.yaml", "--force", *arguments)
    assert done.exit_code == 0, done.output
    return load(folder / "out.yaml"), done.stderr


def test_every_section_becomes_an_episode_over_one_task(folder):
    resources, report = converted(folder, CONFIG)
    task, *episodes = resources
    assert isinstance(task, DebugTask)
    assert [episode.metadata.name for episode in episodes] == [
        "thing-rewrite-agent",
        "thing-debug-agent",
        "thing-debug-5-agent",
    ]
    assert task.spec.source.local_path == str(folder / "data" / "thing")
    assert task.spec.entrypoint == "python -m pytest -sv test.py"
    assert task.spec.debug_entrypoint == "python -m pytest -s test.py"
    assert task.spec.entrypoint_timeout_seconds == 10
    assert task.spec.requirements == ("numpy",)
    assert task.spec.image is None
    assert task.spec.scoring.stop_when_eval_passes
    assert {episode.spec.task_ref.name for episode in episodes} == {"thing"}
    assert "dgym run out.yaml --results exps/thing" in report


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("memory_size: 3", "requests contain every step; agent.parameters.compaction makes room"),
        (
            "reset_prompt_history_after_rewrite: true",
            "requests contain every step; agent.parameters.compaction makes room",
        ),
        ("reset_prompt_history_after_rewrite: false", "requests contain every step, as without this limit"),
        ("memory_size: -1", "requests contain every step, as without this limit"),
    ],
)
def test_a_history_of_some_steps_is_not_converted(folder, setting, text):
    (_, episode), report = converted(folder, f"debug_agent: {{env_kwargs: {{path: data/thing}}, {setting}}}\n")
    assert not episode.spec.agent.parameters
    assert text in report


def test_base_is_merged_and_overridden(folder):
    (_, rewriting, debugging, late), _ = converted(folder, CONFIG)
    agent = debugging.spec.agent
    assert (agent.name, agent.model, agent.temperature, agent.seed) == ("debug_agent", "gpt-4o", "0.5", 42)
    assert (agent.max_steps, agent.max_rewrites) == (30, 10)
    assert agent.parameters == {
        "treeDepth": 1,
        "evalOnRewrite": True,
    }
    assert rewriting.spec.agent.max_steps == 100
    assert late.spec.agent.parameters["rewritesBeforePdb"] == 5


def test_tools_keep_their_settings_under_their_new_names(folder):
    (_, rewriting, debugging, late), report = converted(folder, CONFIG)
    assert rewriting.spec.tools == ("eval", "view", "rewrite")
    assert debugging.spec.tools[1].options == {"persistentBreakpoints": False}
    assert debugging.spec.tools[3] == "rewrite"
    assert late.spec.tools[0].options == {"persistentBreakpoints": False, "autoList": False}
    assert "tools of debug_5_agent: the tool 'teleport' does not exist" in report


def test_lost_keys_are_printed_and_listed_in_the_manifest(folder):
    (folder / "x.yaml").write_text(
        "debug_agent:\n  env_kwargs: {path: data/thing}\n  llm_temperature: [0.1, 0.2]\n  a: 1\n"
    )
    done = migrate("x.yaml")
    assert "Not converted:" in done.stderr
    lost, different = "a: an unknown key of debug-gym", "llm_temperature: agents of dgym make one request for each step"
    assert f"Not converted:\n  {lost}" in done.stderr
    assert f"# Not converted: {lost}" in done.stdout
    assert f"Converted with a difference:\n  {different}" in done.stderr
    assert f"# Converted with a difference: {different}" in done.stdout
    assert "save_patch" not in done.stdout
    assert done.stdout.startswith("# Converted from x.yaml by dgym migrate.\n")


def test_one_section_can_be_chosen(folder):
    resources, _ = converted(folder, CONFIG, "--agent", "debug_agent")
    assert [resource.kind for resource in resources] == ["DebugTask", "Episode"]


def test_sections_with_different_tasks_get_different_tasks(folder):
    text = """
    debug_agent: {env_kwargs: {path: data/thing, run_timeout: 5}}
    rewrite_agent: {env_kwargs: {path: data/thing, run_timeout: 9}}
    again: {agent_type: rewrite_agent, env_kwargs: {path: data/thing, run_timeout: 5}}
    """
    resources, _ = converted(folder, text)
    tasks = {one.metadata.name: one.spec.entrypoint_timeout_seconds for one in resources if isinstance(one, DebugTask)}
    assert tasks == {"thing": 5, "thing-2": 9}
    assert [one.spec.task_ref.name for one in resources if isinstance(one, Episode)] == ["thing", "thing-2", "thing"]


def test_a_bundled_benchmark_becomes_a_set_over_its_tasks(folder):
    (found,), report = converted(folder, "debug_agent: {benchmark: mini_nightmare, problems: all, tools: [pdb]}")
    assert isinstance(found, EpisodeSet)
    assert len(found.spec.tasks) == 10
    assert found.spec.template.tools == ("pdb", "submit")
    assert "submit was added" in report
    (found,), report = converted(folder, "debug_agent: {benchmark: mini_nightmare, problems: [formula, config]}")
    assert [task.name for task in found.spec.tasks] == ["formula"]
    assert "has programs of its own" in report


def test_other_benchmarks_become_sets_that_wait_for_their_tasks(folder):
    text = "debug_agent: {benchmark: swebench, problems: %s, env_kwargs: {run_timeout: 3, dataset_id: x}}"
    (found,), report = converted(folder, text % "all")
    assert found.spec.task_selector.match_labels == {"dgym.dev/benchmark": "swebench"}
    assert "swebench does not come with dgym: dgym benchmark import swebench --from FILE imports it" in report
    assert "Next: dgym benchmark import swebench --from FILE\n" in report
    assert "dgym run out.yaml -f swebench-tasks" in report
    assert "env_kwargs.run_timeout: belongs to the tasks of the benchmark" in report
    (found,), _ = converted(folder, text % "[astropy__astropy-12907]")
    assert [task.name for task in found.spec.tasks] == ["astropy-astropy-12907"]
    _, report = converted(folder, "debug_agent: {benchmark: aider, problems: all}")
    assert "dgym benchmark import aider --from FILE --adapter exercism" in report


FLAT = """
task_name: thing
output_path: exps/thing
{model}
tools: {tools}
{about}
terminal: {{type: docker, mem_limit: 16G, extra_labels: {{team: one}}}}
agent:
  type: {agent}
  max_steps: 7
  max_history_token_cutoff: -1
  system_prompt: >-
    You repair programs. The task: {{{{ info.instructions }}}}
"""
LOCAL = """task_data:
  env_type: local
  path: data/thing
  entrypoint: python -m pytest -sv test.py
  debug_entrypoint: python -m pdb -m pytest -s test.py
  run_timeout: 12
"""


def flat(agent="froggy", model="llm: {name: gpt-4o, temperature: 0.7}", tools="[bash, view, pdb, edit]", about=LOCAL):
    return FLAT.format(agent=agent, model=model, tools=tools, about=about)


def test_a_flat_configuration_becomes_a_task_and_an_episode(folder):
    (task, episode), report = converted(folder, flat())
    assert task.spec.source.local_path == str(folder / "data" / "thing")
    assert task.spec.entrypoint == "python -m pytest -sv test.py"
    assert task.spec.debug_entrypoint == "python -m pytest -s test.py"
    assert task.spec.entrypoint_timeout_seconds == 12
    assert task.spec.resources.limits == {"memory": "16Gi"}
    assert episode.spec.tools == ("bash", "view", "pdb", "rewrite")
    agent = episode.spec.agent
    assert (agent.name, agent.model, agent.temperature, agent.max_steps) == ("debug_agent", "gpt-4o", "0.7", 7)
    assert agent.parameters == {"systemPrompt": {"inline": "You repair programs. The task: {{ task }}"}}
    assert "froggy is debug_agent here" in report
    assert "terminal.extra_labels: " in report
    assert "unknown key of debug-gym" not in report
    checked = CliRunner().invoke(cli, ["validate", "out.yaml"])
    assert checked.exit_code == 0, checked.output


def test_a_flat_configuration_without_pdb_rewrites(folder):
    older = flat(model="llm_name: gpt-4o", tools="[bash, edit]", about="env: {run_timeout: 9}\n" + LOCAL[:-16])
    (task, episode), _ = converted(folder, older)
    assert (episode.spec.agent.name, episode.spec.agent.model) == ("rewrite_agent", "gpt-4o")
    assert task.spec.entrypoint_timeout_seconds == 9


@pytest.mark.parametrize(
    "about", ["dataset: {type: %s, problems: all}", "task_data: {dataset_type: %s, problems: all}"]
)
@pytest.mark.parametrize("name", ["swebench", "swebench-debug", "swesmith", "r2egym", "aider"])
def test_flat_configurations_of_benchmarks_become_sets(folder, about, name):
    (found,), report = converted(folder, flat(agent="solution_agent", tools="[bash, submit]", about=about % name))
    assert isinstance(found, EpisodeSet)
    assert found.spec.template.agent.name == "solution"
    benchmark = "swebench" if name == "swebench-debug" else name
    assert f"dgym benchmark import {benchmark} --from FILE" in report
    assert CliRunner().invoke(cli, ["validate", "out.yaml"]).exit_code == 0


def test_a_flat_configuration_without_tests_ends_without_a_score(folder):
    about = "task_data: {env_type: FreeEnv, image: 'ubuntu:22.04', local_path: data/thing, workspace_dir: /testbed}"
    tools = "[edit, bash, {submit: {eval_on_submit: false}}]"
    (task, episode), report = converted(folder, flat(about=about, tools=tools))
    assert (task.spec.image, task.spec.working_directory) == ("ubuntu:22.04", "/testbed")
    assert task.spec.source.local_path == str(folder / "data" / "thing")
    assert episode.spec.tools[2].options == {"evaluate": False}
    assert "the image must have Python 3.6 or newer" in report
    assert CliRunner().invoke(cli, ["validate", "out.yaml"]).exit_code == 0


@pytest.mark.parametrize("problems", ["all", "[config]", "[formula]", "[formula, sheet_undo]"])
def test_a_benchmark_with_other_programs_is_reported(folder, problems):
    about = f"dataset: {{type: mini_nightmare, problems: {problems}}}"
    _, report = converted(folder, flat(about=about))
    assert "dgym's mini_nightmare has programs of its own" in report


def test_images_other_than_bare_pythons_are_kept(folder):
    text = (
        "debug_agent:\n  env_kwargs: {path: data/thing}\n  terminal:\n    type: docker\n    base_image: team/tests:1\n"
        "    setup_commands: ['pip install six', 'apt install gcc']\n    session_commands: [conda activate x, cd .]\n"
        "    env_vars: {A: 1}\n"
    )
    (task, _), report = converted(folder, text)
    assert task.spec.image == "team/tests:1"
    assert task.spec.requirements == ("six",)
    assert task.spec.setup_commands == ("apt install gcc",)
    assert task.spec.activate == "conda activate x && cd ."
    assert task.spec.env[0].value == "1"
    assert "must have these packages" in report
    assert "runs without network" in report


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            flat(agent="frogy"),
            "agent.type of section frogy: the agent 'frogy' does not exist; set it to one of bash_agent, debug_5_agent",
        ),
        (
            "a: {agent_type: x.Y, env_kwargs: {path: data/thing}}",
            "agent_type of section a: the agent 'x.Y' does not exist",
        ),
        (
            "my_agent: {env_kwargs: {path: data/thing}}",
            "agent_type of section my_agent: the agent 'my_agent' does not exist",
        ),
    ],
)
def test_an_unknown_agent_stops_it(folder, text, complaint):
    (folder / "x.yaml").write_text(text)
    done = migrate("x.yaml", "--output", "out.yaml")
    assert done.exit_code == 2
    assert complaint in done.output
    assert not (folder / "out.yaml").exists()


def test_unsupported_parameters_and_templates_are_reported(folder):
    text = "solution_agent: {env_kwargs: {path: data/thing, dir_tree_depth: 3}}\n"
    text += "debug_agent: {env_kwargs: {path: data/thing}, system_prompt: '{{ agent.env }}'}"
    _, report = converted(folder, text)
    assert "env_kwargs.dir_tree_depth of solution_agent: the agent solution has no such parameter" in report
    assert "system_prompt of debug_agent: the template uses names of debug-gym" in report


def test_a_file_without_sections_becomes_one_episode(folder):
    (_, episode), _ = converted(folder, "agent_type: debug_agent\nmax_steps: 3\nenv_kwargs: {path: data/thing}\n")
    assert episode.spec.agent.name == "debug_agent"
    assert episode.spec.agent.max_steps == 3


def test_a_repository_outside_of_the_manifests_directory_is_allowed_by_the_printed_command(folder):
    (folder / "sub").mkdir()
    done = migrate("scripts/config.yaml", "--output", "sub/out.yaml")
    assert done.exit_code == 0, done.output
    repository = folder / "data" / "thing"
    assert f"dgym run sub/out.yaml --allow-local-path {repository} --results exps/thing" in done.stderr
    assert load(folder / "sub" / "out.yaml", allow_local_paths=[repository])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("debug_agent: {env_kwargs: {path: data/none}}", "the directory data/none was not found here"),
        ("debug_agent: {max_steps: 3}", "section debug_agent has neither a repository nor an image"),
    ],
)
def test_a_task_without_a_repository_stops_it(folder, text, complaint):
    (folder / "x.yaml").write_text(text)
    done = migrate("x.yaml")
    assert done.exit_code == 2
    assert complaint in done.output


def test_existing_files_are_overwritten_only_with_force(folder):
    (folder / "out.yaml").write_text("mine")
    done = migrate("scripts/config.yaml", "--output", "out.yaml")
    assert done.exit_code == 2
    assert "--force" in done.output
    assert (folder / "out.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("apiVersion: dgym.dev/v1alpha1\nkind: Episode\n", "is already a manifest of dgym"),
        ("- 1\n", "one YAML mapping"),
        ("a: {b: 1}\n---\nc: 1\n", "one YAML mapping"),
        ("base: {max_steps: 1}\n", "has no sections"),
        ("x: 1\ny: 2\n", "has no sections"),
        ("services: {web: {image: nginx}}\n", "its section 'services' has none of the known keys"),
        ("name: ci\ntools: [a]\n", "has no sections"),
        ("apiVersion: v1\nkind: Pod\nspec: {}\n", "has no sections"),
        ("a: {b: [}\n", "line 1"),
        ("debug_agent: {max_steps: 0, env_kwargs: {path: data/thing}}\n", "spec.agent.maxSteps"),
    ],
)
def test_other_files_are_refused(folder, text, complaint):
    (folder / "x.yaml").write_text(text)
    done = migrate("x.yaml")
    assert done.exit_code == 2, done.output
    assert complaint in done.output


def test_an_unknown_section_is_refused_with_the_known_sections(folder):
    done = migrate("scripts/config.yaml", "--agent", "dbg")
    assert done.exit_code == 2
    assert "there are rewrite_agent, debug_agent, debug_5_agent" in done.output


VALUES = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.lists(st.integers() | st.text(), max_size=3)
)


@given(key=st.sampled_from(sorted(KEYS)), value=VALUES | st.dictionaries(st.text(), VALUES, max_size=2))
def test_every_value_is_converted_or_reported(key, value):
    outer, _, inner = key.rpartition(".")
    values = {key: value}
    for part in reversed(outer.split(".") if outer else []):
        values = {part: {inner: value}}
        inner, value = part, values[part]
    migration = Migration("debug_agent", values)
    assert all(note.text for note in migration.notes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(values=st.dictionaries(st.sampled_from(["max_steps", "llm_name", "tools", "problems", "random_seed"]), VALUES))
def test_the_outcome_is_a_valid_manifest_or_a_clear_refusal(folder, values):
    text = yaml.safe_dump({"debug_agent": {"env_kwargs": {"path": "data/thing"}, **values}}, allow_unicode=False)
    (folder / "x.yaml").write_text(text)
    done = migrate("x.yaml")
    assert done.exit_code in (0, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
