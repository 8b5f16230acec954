"""``dgym migrate``: convert a configuration of debug-gym to a manifest, with a rule for each key."""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import msgspec

from dgym.agents import agent_names
from dgym.api import API_VERSION, BENCHMARK_LABEL, loads
from dgym.benchmarks import bundled, load_bundled
from dgym.benchmarks.datasets import adapter_names
from dgym.cli.manifests import NAME_LIMIT, local_path, resource_name
from dgym.cli.options import complete_agents
from dgym.cli.output import comment, echo, write_text
from dgym.documents import dump, read_yaml
from dgym.errors import ManifestError
from dgym.untrusted import read_regular

AGENTS = {
    "zero_shot": "debug_agent",
    "zero_shot_nopdb": "rewrite_agent",
    "zero_shot_pdb_after_rewrites": "debug_5_agent",
    "pdb_agent": "debug_agent",
    "rewrite_only": "rewrite_agent",
    "pdb_after_rewrites": "debug_5_agent",
    "solution_agent": "solution",
}
"""Names of agents in versions of debug-gym, and the agents of dgym that do the same."""

GENERAL_AGENTS = frozenset({"froggy", "froggy_agent", "simple_agent"})
"""Agents of debug-gym that take any tools. With ``pdb`` they become ``debug_agent``, without it ``rewrite_agent``."""

TOOLS = {"edit": "rewrite", "patcher": "rewrite", **{name: name for name in (
    "bash", "eval", "grep", "listdir", "pdb", "rewrite", "submit", "view"
)}}  # fmt: skip

_BASE = "base"
_TOP_LEVEL = frozenset({"env_kwargs", "llm_name", "max_steps", "agent_type", "agent", "llm", "task_data", "dataset"})
"""Keys of sections. A file that has one of them at the top level does not have sections."""

_DEFAULT_AGENT = "rewrite_agent"
_THINKING = frozenset({"debug_agent", "rewrite_agent", "debug_5_agent"})
_PDB = re.compile(r"(^|\s)-m pdb(\s+-c\s+\S+)*(?=\s)")
_PIP = re.compile(r"^(?:python3?\s+-m\s+)?pip3?\s+install\s+(.+)$")
_TASK_VARIABLE = re.compile(r"\{\{-?\s*info\.instructions\s*-?\}\}")
_MEMORY = re.compile(r"(\d+)([bkmg]?)b?", re.IGNORECASE)
_PLAIN_IMAGE = re.compile(r"^(docker\.io/)?(library/)?python(:[\w.-]+)?$")
_WITHOUT_PYTHON = re.compile(r"^(docker\.io/)?(library/)?(ubuntu|debian|alpine|fedora)(:[\w.-]+)?$")
_MAXIMUM_SECONDS = 3600
NESTED = frozenset({"env_kwargs", "env", "terminal", "env_kwargs.terminal", "dataset", "task_data", "agent", "llm"})
TOOL_OPTIONS = {
    "pdb": {"persistent_breakpoints": "persistentBreakpoints", "auto_list": "autoList"},
    "submit": {"eval_on_submit": "evaluate"},
}
PARAMETERS = {
    "n_rewrites_before_pdb": "rewritesBeforePdb",
    "env_kwargs.run_on_rewrite": "evalOnRewrite",
    "env_kwargs.auto_eval_on_rewrite": "evalOnRewrite",
    "env_kwargs.dir_tree_depth": "treeDepth",
    "env_kwargs.show_directory_tree": "treeDepth",
    "show_directory_tree": "treeDepth",
}
_BENCHMARKS = {"swebench-debug": "swebench"}
_ADAPTERS = {"aider": "exercism"}
_Documents = dict[tuple[str, str], dict[str, Any]]
"""Specs by kind and name of their document."""


class KeyResult(StrEnum):
    """How a key that is not converted unchanged is handled. The values are headings of the output."""

    LOST = "Not converted"
    CHANGED = "Converted with a difference"
    NEEDLESS = "Left out without a loss"


class Note(msgspec.Struct, frozen=True):
    """A note about a key that is not converted unchanged."""

    section: str
    key: str
    text: str
    result: KeyResult = KeyResult.LOST


def read_sections(path: Path, agent: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the settings of each section of ``path``, merged into the settings of ``base``.

    With ``agent``, only the section of that name is returned.

    Raises:
        ManifestError: The file is not a configuration of debug-gym, or does not have that section.
    """
    values = _read(path)
    if values.get("apiVersion") == API_VERSION:
        raise ManifestError(f"{path}: is already a manifest of dgym; run it with dgym run")
    if _TOP_LEVEL & values.keys():
        return {str(agent_type(values)[1] or _DEFAULT_AGENT): values}
    base = values.pop(_BASE, {})
    if not isinstance(base, dict) or not values or not all(isinstance(value, dict) for value in values.values()):
        raise ManifestError(f"{path}: not a configuration of debug-gym: it has no sections with an agent's settings")
    if agent is not None and agent not in values:
        raise ManifestError(f"{path}: has no section {agent!r}; there are {', '.join(values)}")
    return {name: {**base, **value} for name, value in values.items() if agent in (None, name)}


def agent_type(values: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the key with which a section names its agent, and its value, which is None if the key is missing."""
    agent = values.get("agent")
    if isinstance(agent, dict) and agent.get("type") is not None:
        return "agent.type", agent["type"]
    return "agent_type", values.get("agent_type")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, root=path.parent).decode("utf-8-sig")
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    documents = list(read_yaml(text))
    for document in documents:
        for problem in document.problems:
            raise ManifestError(f"{path}: line {problem.line}: {problem.message}")
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise ManifestError(f"{path}: not a configuration of debug-gym, which is one YAML mapping")
    return {str(name): value for name, value in documents[0].value.items()}


class Migration:
    """The result of applying the rules of ``KEYS`` to the keys of one section.

    ``origins`` has the key that each field of ``task`` comes from. ``run`` has the values that belong to neither task
    nor agent: ``benchmark``, ``problems``, ``path``, ``results`` and ``import``. ``notes`` are about keys that are not
    converted unchanged. ``agent_key`` and ``kind`` are the key with which the section names its agent, and the agent.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.task: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.agent: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.tools: list[Any] = []
        self.tool_options: dict[str, dict[str, Any]] = {}
        self.run: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.agent_key, kind = agent_type(values)
        self.kind = str(kind or name)
        self.agent["name"] = AGENTS.get(self.kind, self.kind)
        if self.kind in GENERAL_AGENTS:
            self.agent["name"] = "debug_agent" if "pdb" in _tool_names(values.get("tools")) else "rewrite_agent"
            text = f"{self.kind} is {self.agent['name']} here, which runs the tests by itself as evalOnRewrite chooses"
            self.note(self.agent_key, text, KeyResult.CHANGED)
        self._walk(values, "")

    def note(self, key: str, text: str, result: KeyResult = KeyResult.LOST) -> None:
        """Add a note about ``key``."""
        self.notes.append(Note(self.name, key, text, result))

    def tool_list(self) -> list[Any]:
        """Return the tools in the form of ``spec.tools``, with their options."""
        options = self.tool_options
        return [{"name": tool, "options": options[tool]} if options.get(tool) else tool for tool in self.tools]

    def _walk(self, values: Mapping[Any, Any], prefix: str) -> None:
        for name, value in values.items():
            key = f"{prefix}{name}"
            if key in NESTED and isinstance(value, dict):
                self._walk(value, f"{key}.")
            elif value is None:
                continue
            elif key not in KEYS:
                self.note(key, "an unknown key of debug-gym")
            else:
                try:
                    KEYS[key](self, key, value)
                except (TypeError, ValueError, InvalidOperation):
                    self.note(key, f"{value!r} is not a valid value")
                self.origins = {field: self.origins.get(field, key) for field in self.task}


Rule = Callable[[Migration, str, Any], None]


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} is not text")
    return str(value)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [_text(item) for item in value]


def _field(part: str, name: str, convert: Callable[[Any], Any] = _text) -> Rule:
    """Return a rule that sets ``name`` in the attribute ``part`` of the migration, unless ``convert`` returns None."""

    def rule(migration: Migration, _key: str, value: Any) -> None:
        converted = convert(value)
        if converted is not None:
            getattr(migration, part)[name] = converted

    return rule


def _note(text: str, result: KeyResult = KeyResult.LOST) -> Rule:
    return lambda migration, key, _value: migration.note(key, text, result)


def _set_timeout(migration: Migration, key: str, value: Any) -> None:
    seconds = int(value)
    migration.task["entrypointTimeoutSeconds"] = min(max(1, seconds), _MAXIMUM_SECONDS)
    if not 1 <= seconds <= _MAXIMUM_SECONDS:
        migration.note(key, f"{seconds} is out of range; it must be from 1 to {_MAXIMUM_SECONDS}", KeyResult.CHANGED)


def _set_terminal(migration: Migration, key: str, value: Any) -> None:
    if value not in ("local", "docker", "kubernetes"):
        migration.note(key, f"{value!r} is not a kind of sandbox; dgym run --sandbox chooses one")


def _set_memory(migration: Migration, _key: str, value: Any) -> None:
    match = _MEMORY.fullmatch(_text(value).strip())
    if match is None:
        raise ValueError(value)
    unit = match[2].lower()
    quantity = match[1] + ("" if unit in ("", "b") else f"{unit.upper()}i")
    migration.task["resources"] = {"limits": {"memory": quantity}}


def _set_history(migration: Migration, key: str, value: Any) -> None:
    if int(value) < 0 or value is False:
        migration.note(key, "requests contain every step, as without this limit", KeyResult.NEEDLESS)
    elif key.endswith("token_cutoff"):
        migration.note(key, "requests are kept within the model's context_limit, which llm.yaml sets")
    else:
        migration.note(key, "requests contain every step; agent.parameters.compaction makes room in a full context")


def _set_prompt(migration: Migration, key: str, value: Any) -> None:
    text = _TASK_VARIABLE.sub("{{ task }}", _text(value))
    name = "taskPrompt" if "instance" in key else "systemPrompt"
    if migration.agent["name"] not in _THINKING:
        migration.note(key, f"the agent {migration.agent['name']} has no such parameter")
    elif re.search(r"\{[{%#]", text.replace("{{ task }}", "")):
        migration.note(
            key, f"the template uses names of debug-gym; agent.parameters.{name} takes a template with dgym's names"
        )
    elif text.strip():
        migration.parameters[name] = {"inline": text}


def _set_image(migration: Migration, key: str, value: Any) -> None:
    if _PLAIN_IMAGE.match(_text(value)):
        text = "has only Python; requirements are installed into a virtual environment instead"
        migration.note(key, f"{value} {text}", KeyResult.NEEDLESS)
    else:
        migration.task["image"] = _text(value)
        if _WITHOUT_PYTHON.match(_text(value)):
            migration.note(key, f"{value}: the image must have Python 3.6 or newer for dgym", KeyResult.CHANGED)


def _set_setup(migration: Migration, key: str, value: Any) -> None:
    for command in _texts(value):
        match = _PIP.match(command.strip())
        packages = shlex.split(match[1]) if match else []
        if not packages or any(word.startswith(("-", ".", "/")) for word in packages):
            migration.task.setdefault("setupCommands", []).append(command)
            text = f"{command!r} runs without network; put the files that it downloads into the image"
            migration.note(key, text, KeyResult.CHANGED)
            continue
        # dgym always installs pytest.
        more = [package for package in packages if package != "pytest"]
        if more:
            migration.task.setdefault("requirements", []).extend(more)
        if "image" in migration.task:
            migration.note(key, f"{command!r}: in a container the image must have these packages", KeyResult.CHANGED)


def _set_temperature(migration: Migration, key: str, value: Any) -> None:
    first, *rest = value if isinstance(value, list) else [value]
    migration.agent["temperature"] = format(Decimal(str(first)), "f")
    if rest:
        text = "agents of dgym make one request for each step: only the first value was converted"
        migration.note(key, text, KeyResult.CHANGED)


def _set_parameter(migration: Migration, key: str, value: Any) -> None:
    name = PARAMETERS[key]
    only = {"debug_5_agent"} if name == "rewritesBeforePdb" else _THINKING
    if migration.agent["name"] not in only:
        migration.note(key, f"the agent {migration.agent['name']} has no such parameter")
    elif name == "treeDepth":
        migration.parameters[name] = min(max(0, int(value)), 20)
    else:
        migration.parameters[name] = value if isinstance(value, bool) else max(0, int(value))


def _set_tools(migration: Migration, key: str, value: Any) -> None:
    for item in _tool_items(value):
        name, options = _tool(item)
        known = TOOLS.get(name.partition(":")[0])
        if known is None:
            migration.note(key, f"the tool {name!r} does not exist; a tool of your own is named package.module:Class")
        elif known not in migration.tools:
            migration.tools.append(known)
        for option, setting in options.items():
            if known is not None and option in TOOL_OPTIONS.get(known, {}):
                _set_tool_option(migration, known, option, setting)
            else:
                migration.note(f"{key}.{name}.{option}", "the tool has no such option")


def _tool_items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else str(value).split(",")


def _tool_names(value: Any) -> list[str]:
    return [_tool(item)[0] for item in _tool_items(value)]


def _tool(item: Any) -> tuple[str, dict[str, Any]]:
    """Return the name and options of a tool, which debug-gym accepts in several forms."""
    if isinstance(item, dict) and "name" in item:
        return str(item["name"]), {key: value for key, value in item.items() if key != "name"}
    if isinstance(item, dict) and len(item) == 1:
        ((name, options),) = item.items()
        return str(name), options if isinstance(options, dict) else {}
    return str(item).strip(), {}


def _set_pdb(migration: Migration, key: str, value: Any) -> None:
    _set_tool_option(migration, "pdb", key.rpartition(".")[2], value)


def _set_tool_option(migration: Migration, tool: str, option: str, value: Any) -> None:
    """Record an option that is False. True is the default of every option."""
    if value is False:
        migration.tool_options.setdefault(tool, {})[TOOL_OPTIONS[tool][option]] = False


_BENCHMARK = _field("run", "benchmark", lambda value: None if value in ("custom", "local", "FreeEnv") else str(value))
_PROBLEMS = _field("run", "problems", lambda value: value)
_REWRITES = _field("agent", "maxRewrites", lambda value: int(value) if int(value) >= 0 else None)
_BREAKPOINTS = _note(
    "the observations of pdb always show the breakpoints that a call sets or moves", KeyResult.NEEDLESS
)
_FROM_MANIFESTS = _note("dgym benchmark import reads a file or an address instead")
_PATH = _field("run", "path", str)
_TERMINAL: dict[str, Rule] = {
    "type": _set_terminal,
    "base_image": _set_image,
    "setup_commands": _set_setup,
    "mem_limit": _set_memory,
    "command_timeout": _note("bash and eval have time limits of their own"),
    "extra_labels": _note("labels of pods come from the pod template of the chart"),
    "pod_spec_kwargs": _note("the pod template of the chart, or podOverrides of the Episode"),
    "kube_config": _note("dgym submit uses KUBECONFIG", KeyResult.NEEDLESS),
    "kube_context": _note("dgym submit --context"),
    "session_commands": _field("task", "activate", lambda value: " && ".join(_texts(value)) or None),
    "env_vars": _field(
        "task", "env", lambda value: [{"name": str(name), "value": str(item)} for name, item in dict(value).items()]
    ),
}


def _read_elsewhere(_migration: Migration, _key: str, _value: Any) -> None:
    """Do nothing: ``Migration`` and ``agent_type`` read these keys."""


_TASK_KEYS: dict[str, Rule] = {
    "path": _PATH,
    "entrypoint": _field("task", "entrypoint"),
    # ``-m pdb`` is removed, because dgym starts the program under its own pdb.
    "debug_entrypoint": _field("task", "debugEntrypoint", lambda value: _PDB.sub("", _text(value)).strip()),
    "run_timeout": _set_timeout,
    "readonly_patterns": _field("task", "readOnlyPatterns", lambda value: [_text(item) for item in value]),
    "instructions": _field("task", "instructions"),
    **dict.fromkeys(("dataset_id", "dataset_revision", "split"), _FROM_MANIFESTS),
}
KEYS: dict[str, Rule] = {
    "benchmark": _BENCHMARK,
    "dataset.type": _BENCHMARK,
    "problems": _PROBLEMS,
    "dataset.problems": _PROBLEMS,
    "task_data.dataset_type": _BENCHMARK,
    "task_data.env_type": _BENCHMARK,
    "task_data.problems": _PROBLEMS,
    "task_data.image": _set_image,
    "task_data.local_path": _PATH,
    "task_data.mount_path": _PATH,
    "task_data.workspace_dir": _field("task", "workingDirectory"),
    "task_data.setup_commands": _set_setup,
    "task_data.init_git": _note("the workspace of a localPath is a git repository", KeyResult.NEEDLESS),
    "env_kwargs.data_path": _FROM_MANIFESTS,
    "env.run_timeout": _set_timeout,
    "env_kwargs.auto_view_change": _note("the observation of a rewrite always shows the change", KeyResult.NEEDLESS),
    "env_kwargs.show_current_breakpoints": _BREAKPOINTS,
    "show_current_breakpoints": _BREAKPOINTS,
    "agent_type": _read_elsewhere,
    "agent.type": _read_elsewhere,
    "task_name": _read_elsewhere,
    "llm_name": _field("agent", "model"),
    "llm.name": _field("agent", "model"),
    "llm_temperature": _set_temperature,
    "llm.temperature": _set_temperature,
    "llm_config_file_path": _note("models are configured outside of manifests; LLM_CONFIG_FILE_PATH names the file"),
    "random_seed": _field("agent", "seed", int),
    "max_steps": _field("agent", "maxSteps", int),
    "agent.max_steps": _field("agent", "maxSteps", int),
    **dict.fromkeys(
        (
            "memory_size",
            "agent.max_history_steps_cutoff",
            "agent.max_history_token_cutoff",
            "reset_prompt_history_after_rewrite",
        ),
        _set_history,
    ),
    "max_rewrite_steps": _REWRITES,
    "max_edit_steps": _REWRITES,
    **dict.fromkeys(
        (
            "system_prompt",
            *(f"agent.{name}_prompt{end}" for name in ("system", "instance") for end in ("", "_template")),
        ),
        _set_prompt,
    ),
    **dict.fromkeys(
        ("system_prompt_template_file", "agent.system_prompt_template_file", "agent.instance_prompt_template_file"),
        _note("templates have other variables in dgym; agent.parameters.systemPrompt names a template"),
    ),
    "use_conversational_prompt": _note("prompts are always conversations", KeyResult.NEEDLESS),
    "save_patch": _note("the patch is always stored, as patch.diff", KeyResult.NEEDLESS),
    "log_prompt_response_pairs": _note("the trajectory always contains all requests and replies", KeyResult.NEEDLESS),
    "uuid": _note("runs do not have names: the same command resumes a run", KeyResult.NEEDLESS),
    "tools": _set_tools,
    "output_path": _field("run", "results"),
    "terminal.registry": _note("name the image with its registry"),
    "terminal.namespace": _note("metadata.namespace of the manifest, or kubectl --namespace"),
    **dict.fromkeys(PARAMETERS, _set_parameter),
    **{f"{part}.{name}": rule for part in ("env_kwargs", "task_data", "dataset") for name, rule in _TASK_KEYS.items()},
    **{f"{prefix}{name}": rule for prefix in ("terminal.", "env_kwargs.terminal.") for name, rule in _TERMINAL.items()},
    **{f"{prefix}{name}": _set_pdb for prefix in ("", "env_kwargs.") for name in TOOL_OPTIONS["pdb"]},
}


_KNOWN = frozenset({*(key.partition(".")[0] for key in KEYS), *NESTED})


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a conversion.

    Attributes:
        documents: The documents of the manifest.
        notes: Notes on keys that are not converted unchanged.
        sections: Names of the converted sections.
        results: The results directory for ``dgym run``, if a section names one.
        outside: Repositories outside of the manifest's directory.
        imports: Benchmarks that do not come with dgym and must be imported.
    """

    documents: tuple[dict[str, Any], ...]
    notes: tuple[Note, ...]
    sections: tuple[str, ...]
    results: str | None = None
    outside: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


def convert(sections: Mapping[str, Mapping[str, Any]], *, config: Path, output: Path | None) -> Converted:
    """Convert every section to a task and an episode. Sections with equal tasks share the task.

    Raises:
        ManifestError: A section does not have any key of debug-gym, an agent is unknown, or a task has neither an
            existing repository nor an image.
    """
    for name, values in sections.items():
        if not values.keys() & _KNOWN:
            raise ManifestError(
                f"{config}: not a configuration of debug-gym: its section {name!r} has none of the known keys,"
                " such as env_kwargs, llm_name or max_steps"
            )
    documents: _Documents = {}
    migrations = [Migration(name, values) for name, values in sections.items()]
    for migration in migrations:
        _check_agent(migration, config)
    repositories: list[Path] = []
    for migration in migrations:
        if "benchmark" in migration.run:
            _add_benchmark(migration, documents)
        else:
            repositories += _add_custom(migration, documents, config=config, output=output)
    folder = Path.cwd() if output is None else output.absolute().parent
    return Converted(
        documents=tuple(
            {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
            for (kind, name), spec in documents.items()
        ),
        notes=tuple(note for migration in migrations for note in migration.notes),
        sections=tuple(sections),
        results=next((str(each.run["results"]) for each in migrations if "results" in each.run), None),
        imports=tuple(dict.fromkeys(each.run["import"] for each in migrations if "import" in each.run)),
        outside=tuple(dict.fromkeys(str(path) for path in repositories if not _is_below(path, folder))),
    )


def manifest_text(converted: Converted, *, config: Path) -> str:
    """Return the documents as YAML. Comments at the top list the keys that are lost or changed."""
    head = [f"# Converted from {comment(config.name)} by dgym migrate."]
    for result in (KeyResult.LOST, KeyResult.CHANGED):
        head += [f"# {result}: {comment(text)}" for text in describe(converted, result)]
    return "\n".join(head) + "\n" + "---\n".join(map(dump, converted.documents))


def describe(converted: Converted, result: KeyResult) -> list[str]:
    """Return a line for each key and text. It lists the sections, unless the note is about all of them."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for note in converted.notes:
        if note.result is result:
            grouped.setdefault((note.key, note.text), []).append(note.section)
    return [
        f"{key}: {text}" if set(about) == set(converted.sections) else f"{key} of {', '.join(about)}: {text}"
        for (key, text), about in grouped.items()
    ]


def _add(documents: _Documents, kind: str, name: str, spec: dict[str, Any]) -> str:
    """Add ``spec`` and return its name. The name gets a number if another spec has it already."""
    free, number = name, 2
    while documents.setdefault((kind, free), spec) != spec:
        free, number = f"{name[: NAME_LIMIT - 5].rstrip('-')}-{number}", number + 1
    return free


def _add_custom(migration: Migration, documents: _Documents, *, config: Path, output: Path | None) -> list[Path]:
    """Add a DebugTask and an Episode. Return the repository of the task in a list, which is empty without one."""
    path = migration.run.get("path")
    repository = None if path is None else _find(path, config)
    if repository is not None and not repository.is_dir():
        raise ManifestError(
            f"{config}: the directory {path} was not found here, beside the configuration or one level above it;"
            f" correct the path of section {migration.name}, or start dgym migrate in the directory that contains it"
        )
    if repository is None and "image" not in migration.task:
        raise ManifestError(
            f"{config}: section {migration.name} has neither a repository nor an image; set env_kwargs.path or"
            " task_data.path"
        )
    name = _name(config.stem if repository is None else repository.name)
    source = {} if repository is None else {"source": {"localPath": local_path(repository, output)}}
    spec = {**source, **migration.task}
    if spec.get("debugEntrypoint") in (None, spec.get("entrypoint")):
        spec.pop("debugEntrypoint", None)
    if "submit" not in migration.tools:
        # debug-gym ends an episode as soon as its tests pass. Its agents may not have a tool that ends it.
        spec["scoring"] = {"stopWhenEvalPasses": True}
    task = _add(documents, "DebugTask", name, spec)
    episode = {"taskRef": {"name": task}, **_agent(migration)}
    _add(documents, "Episode", _name(f"{name}-{migration.name}"), episode)
    return [] if repository is None else [repository]


def _add_benchmark(migration: Migration, documents: _Documents) -> None:
    """Add an EpisodeSet for the tasks of a benchmark."""
    named, problems = str(migration.run["benchmark"]), migration.run.get("problems", "all")
    benchmark = _BENCHMARKS.get(named, named)
    wanted = [_task_name(str(problem)) for problem in problems] if isinstance(problems, list) else []
    tasks: dict[str, Any] = {"tasks": [{"name": name} for name in wanted]}
    if benchmark in bundled():
        known = [task.metadata.name for task in load_bundled(benchmark)]
        chosen = [name for name in wanted if name in known]
        tasks = {"tasks": [{"name": name} for name in chosen or known]}
        text = (
            f"dgym's {benchmark} has programs of its own: {', '.join(known)}; for the programs of debug-gym, convert a"
            " configuration with the directory of each program as path"
        )
        migration.note("problems", text, KeyResult.LOST if chosen else KeyResult.CHANGED)
    else:
        label = f"{BENCHMARK_LABEL}: {_name(benchmark)}"
        if not wanted:
            tasks = {"taskSelector": {"matchLabels": {BENCHMARK_LABEL: _name(benchmark)}}}
        if not wanted and problems != "all":
            migration.note("problems", f"{problems!r}: the set contains every task with the label {label}")
        migration.run["import"] = benchmark
        text = f"{named} does not come with dgym: {_import_command(benchmark)} imports it"
        migration.note("benchmark", text, KeyResult.CHANGED)
    for key in dict.fromkeys(migration.origins.values()):
        migration.note(key, "belongs to the tasks of the benchmark, whose manifests set it")
    if migration.tools and "submit" not in migration.tools:
        migration.tools.append("submit")
        migration.note("tools", "submit was added: the benchmark's tasks do not end by themselves", KeyResult.CHANGED)
    _add(documents, "EpisodeSet", _name(f"{benchmark}-{migration.name}"), {**tasks, "template": _agent(migration)})


def _agent(migration: Migration) -> dict[str, Any]:
    parameters = {"parameters": migration.parameters} if migration.parameters else {}
    tools = migration.tool_list()
    return {"agent": {**migration.agent, **parameters}, **({"tools": tools} if tools else {})}


def _check_agent(migration: Migration, config: Path) -> None:
    name, known = migration.agent["name"], agent_names()
    if name not in known and ":" not in name:
        raise ManifestError(
            f"{config}: {migration.agent_key} of section {migration.name}: the agent {migration.kind!r} does not exist;"
            f" set it to one of {', '.join(known)}, or to package.module:Class for an agent of your own"
        )


def _name(text: str) -> str:
    return resource_name(text, "task")


def _task_name(text: str) -> str:
    """Return the name that ``dgym benchmark`` gives to the task of an instance."""
    return resource_name(text, "task", limit=200)


def _import_command(benchmark: str) -> str:
    adapter = _ADAPTERS.get(benchmark, benchmark)
    if adapter not in adapter_names():
        adapter = "NAME"
    option = "" if adapter == benchmark else f" --adapter {adapter}"
    return f"dgym benchmark import {benchmark} --from FILE{option}"


def _find(path: str, config: Path) -> Path:
    """Return the directory.

    A relative path starts at the current directory, as in debug-gym, at the configuration's directory, or one level
    above it.
    """
    given = Path(path).expanduser()
    bases = (Path.cwd(), config.absolute().parent, config.absolute().parent.parent)
    candidates = [Path(os.path.normpath(base / given)) for base in bases]
    return next((candidate for candidate in candidates if candidate.is_dir()), candidates[0])


def _is_below(repository: Path, folder: Path) -> bool:
    return repository.resolve().is_relative_to(folder.resolve())


@click.command("migrate")
@click.argument("config", metavar="CONFIG.yaml", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File for the manifest. [default: standard output]",
)
@click.option(
    "--agent", metavar="NAME", shell_complete=complete_agents, help="Only this section. [default: all sections]"
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def migrate_command(config: str, output: str | None, agent: str | None, force: bool) -> None:
    """Convert a configuration of debug-gym to a manifest.

    Every section becomes an Episode, or for a benchmark an EpisodeSet. Keys without an equivalent, or with another
    meaning, are listed on standard error and in the first lines of the manifest. docs/migrating.md describes each key.
    """
    source, target = Path(config), Path(output) if output is not None else None
    converted = convert(read_sections(source, agent), config=source, output=target)
    text = manifest_text(converted, config=source)
    loads(text, source=f"the manifest made of {source}")
    if target is None:
        echo(text, nl=False)
    else:
        write_text(target, text, force=force)
        echo(f"wrote {target}", err=True)
    for result in KeyResult:
        found = describe(converted, result)
        if found:
            echo("\n".join([f"{result}:", *(f"  {line}" for line in found)]), err=True)
    _print_next(target, converted)


def _print_next(output: Path | None, converted: Converted) -> None:
    manifest = shlex.quote(str(output)) if output is not None else "MANIFEST"
    options = "".join(f" --allow-local-path {shlex.quote(path)}" for path in converted.outside)
    options += f" --results {shlex.quote(converted.results)}" if converted.results else ""
    lines, folders = [], ""
    for benchmark in converted.imports:
        lines += [
            _import_command(benchmark),
            f"dgym benchmark render {benchmark} --output {benchmark}-tasks && rm {benchmark}-tasks/episodeset.yaml",
        ]
        folders += f" -f {benchmark}-tasks"
    lines.append(f"dgym run {manifest}{folders}{options}")
    echo("Next: " + "\n      ".join(lines), err=True)
