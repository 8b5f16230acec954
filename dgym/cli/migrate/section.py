"""A configuration of debug-gym: its sections, or the whole file where it has none, and a rule for each key."""

import re
import shlex
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from dgym.api import API_VERSION
from dgym.documents import read_yaml
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
"""Names that the same agents had at other times."""

GENERAL_AGENTS = frozenset({"froggy", "froggy_agent", "simple_agent"})
"""Agents that take any tools; which agent of dgym is like one depends on whether ``pdb`` is among them."""

TOOLS = {"edit": "rewrite", "patcher": "rewrite", **{name: name for name in (
    "bash", "eval", "grep", "listdir", "pdb", "rewrite", "submit", "view"
)}}  # fmt: skip

_BASE = "base"
_TOP_LEVEL = frozenset({"env_kwargs", "llm_name", "max_steps", "agent_type", "agent", "llm", "task_data", "dataset"})
"""Keys of sections; at the top level they mean a file without sections."""

_DEFAULT_AGENT = "rewrite_agent"
_THINKING = frozenset({"debug_agent", "rewrite_agent", "debug_5_agent"})
_PDB = re.compile(r"(^|\s)-m pdb(\s+-c\s+\S+)*(?=\s)")
_PIP = re.compile(r"^(?:python3?\s+-m\s+)?pip3?\s+install\s+(.+)$")
_TASK_VARIABLE = re.compile(r"\{\{-?\s*info\.instructions\s*-?\}\}")
_MEMORY = re.compile(r"(\d+)([bkmg]?)b?", re.IGNORECASE)
_PLAIN_IMAGE = re.compile(r"^(docker\.io/)?(library/)?python(:[\w.-]+)?$")
_WITHOUT_PYTHON = re.compile(r"^(docker\.io/)?(library/)?(ubuntu|debian|alpine|fedora)(:[\w.-]+)?$")
_MAXIMUM_SECONDS = 3600


class Fate(StrEnum):
    """The outcome of a key; the values are headings."""

    LOST = "Not converted"
    CHANGED = "Converted with a difference"
    NEEDLESS = "Left out without a loss"


class Note(msgspec.Struct, frozen=True):
    """The outcome of a key that is not in the manifest as it was."""

    section: str
    key: str
    text: str
    fate: Fate = Fate.LOST


def read_sections(path: Path, agent: str | None = None) -> dict[str, dict[str, Any]]:
    """The settings of each section of ``path``, those of ``base`` included; with ``agent`` of that section alone.

    Raises:
        ManifestError: The file is not a configuration of debug-gym, or has no such section.
    """
    values = _read(path)
    if values.get("apiVersion") == API_VERSION:
        raise ManifestError(f"{path}: is a manifest of dgym already; run it with dgym run")
    if _TOP_LEVEL & values.keys():
        return {str(agent_type(values)[1] or _DEFAULT_AGENT): values}
    base = values.pop(_BASE, {})
    if not isinstance(base, dict) or not values or not all(isinstance(value, dict) for value in values.values()):
        raise ManifestError(f"{path}: not a configuration of debug-gym: it has no sections with an agent's settings")
    if agent is not None and agent not in values:
        raise ManifestError(f"{path}: has no section {agent!r}; there are {', '.join(values)}")
    return {name: {**base, **value} for name, value in values.items() if agent in (None, name)}


def agent_type(values: Mapping[str, Any]) -> tuple[str, Any]:
    """The key by which a section names its agent, and its value; None where it has no such key."""
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
    """The parts of a task, an agent and its tools that the keys of one section become, and notes on the others.

    ``KEYS`` has a rule for every key. ``agent_key`` and ``kind`` are how the section names its agent. ``origins``
    are the keys that the fields of the task are from; ``run`` has what belongs neither to a task nor to an agent:
    ``benchmark``, ``problems``, ``path`` and ``results``.
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
            self.note(self.agent_key, text, Fate.CHANGED)
        self._walk(values, "")

    def note(self, key: str, text: str, fate: Fate = Fate.LOST) -> None:
        """Record the outcome of ``key``."""
        self.notes.append(Note(self.name, key, text, fate))

    def tool_list(self) -> list[Any]:
        """The tools as a manifest names them, with their options."""
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
                self.note(key, "not a key of debug-gym that dgym knows")
            else:
                try:
                    KEYS[key](self, key, value)
                except (TypeError, ValueError, InvalidOperation):
                    self.note(key, f"{value!r} is not a value for it")
                self.origins = {field: self.origins.get(field, key) for field in self.task}


Rule = Callable[[Migration, str, Any], None]


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} is not text")
    return str(value)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [_text(item) for item in value]


def _field(part: str, name: str, convert: Callable[[Any], Any] = _text) -> Rule:
    """The value becomes the field ``name`` of that part of the migration, unless it is converted to None."""

    def rule(migration: Migration, _key: str, value: Any) -> None:
        converted = convert(value)
        if converted is not None:
            getattr(migration, part)[name] = converted

    return rule


def _note(text: str, fate: Fate = Fate.LOST) -> Rule:
    return lambda migration, key, _value: migration.note(key, text, fate)


def _set_timeout(migration: Migration, key: str, value: Any) -> None:
    seconds = int(value)
    migration.task["entrypointTimeoutSeconds"] = min(max(1, seconds), _MAXIMUM_SECONDS)
    if not 1 <= seconds <= _MAXIMUM_SECONDS:
        migration.note(key, f"{seconds} is out of bounds; 1 to {_MAXIMUM_SECONDS} is possible", Fate.CHANGED)


def _set_terminal(migration: Migration, key: str, value: Any) -> None:
    if value not in ("local", "docker", "kubernetes"):
        migration.note(key, f"{value!r} is no kind of sandbox; dgym run --sandbox chooses one")


def _set_memory(migration: Migration, _key: str, value: Any) -> None:
    match = _MEMORY.fullmatch(_text(value).strip())
    if match is None:
        raise ValueError(value)
    unit = match[2].lower()
    quantity = match[1] + ("" if unit in ("", "b") else f"{unit.upper()}i")
    migration.task["resources"] = {"limits": {"memory": quantity}}


def _set_history(migration: Migration, key: str, value: Any) -> None:
    if int(value) < 0 or value is False:
        migration.note(key, "requests hold every step, as without this limit", Fate.NEEDLESS)
    elif key.endswith("token_cutoff"):
        migration.note(key, "requests are kept within the model's context_limit, which llm.yaml sets")
    else:
        migration.note(key, "requests hold every step; agent.parameters.compaction makes room in a full context")


def _set_prompt(migration: Migration, key: str, value: Any) -> None:
    text = _TASK_VARIABLE.sub("{{ task }}", _text(value))
    name = "taskPrompt" if "instance" in key else "systemPrompt"
    if migration.agent["name"] not in _THINKING:
        migration.note(key, f"the agent {migration.agent['name']} has no such parameter")
    elif re.search(r"\{[{%#]", text.replace("{{ task }}", "")):
        migration.note(
            key, f"the template uses names of debug-gym; agent.parameters.{name} takes one with dgym's names"
        )
    elif text.strip():
        migration.parameters[name] = {"inline": text}


def _set_image(migration: Migration, key: str, value: Any) -> None:
    if _PLAIN_IMAGE.match(_text(value)):
        text = "holds nothing but Python; requirements are installed into a virtual environment instead"
        migration.note(key, f"{value} {text}", Fate.NEEDLESS)
    else:
        migration.task["image"] = _text(value)
        if _WITHOUT_PYTHON.match(_text(value)):
            migration.note(key, f"{value}: the image must hold Python 3.6 or newer, in which dgym runs", Fate.CHANGED)


def _set_setup(migration: Migration, key: str, value: Any) -> None:
    for command in _texts(value):
        match = _PIP.match(command.strip())
        packages = shlex.split(match[1]) if match else []
        if not packages or any(word.startswith(("-", ".", "/")) for word in packages):
            migration.task.setdefault("setupCommands", []).append(command)
            text = f"{command!r} runs without network; what it downloads belongs in the image"
            migration.note(key, text, Fate.CHANGED)
            continue
        # pytest is there without asking.
        more = [package for package in packages if package != "pytest"]
        if more:
            migration.task.setdefault("requirements", []).extend(more)
        if "image" in migration.task:
            migration.note(key, f"{command!r}: in a container the image must hold these packages", Fate.CHANGED)


def _set_temperature(migration: Migration, key: str, value: Any) -> None:
    first, *rest = value if isinstance(value, list) else [value]
    migration.agent["temperature"] = format(Decimal(str(first)), "f")
    if rest:
        text = "agents of dgym make one request a step: only the first value was taken"
        migration.note(key, text, Fate.CHANGED)


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
            migration.note(key, f"there is no tool {name!r}; a tool of your own is named package.module:Class")
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
    """A tool's name and options, in each of the forms they are written in."""
    if isinstance(item, dict) and "name" in item:
        return str(item["name"]), {key: value for key, value in item.items() if key != "name"}
    if isinstance(item, dict) and len(item) == 1:
        ((name, options),) = item.items()
        return str(name), options if isinstance(options, dict) else {}
    return str(item).strip(), {}


def _set_pdb(migration: Migration, key: str, value: Any) -> None:
    _set_tool_option(migration, "pdb", key.rpartition(".")[2], value)


def _set_tool_option(migration: Migration, tool: str, option: str, value: Any) -> None:
    """Record an option that is switched off; true is the default of each."""
    if value is False:
        migration.tool_options.setdefault(tool, {})[TOOL_OPTIONS[tool][option]] = False


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

_BENCHMARK = _field("run", "benchmark", lambda value: None if value in ("custom", "local", "FreeEnv") else str(value))
_PROBLEMS = _field("run", "problems", lambda value: value)
_REWRITES = _field("agent", "maxRewrites", lambda value: int(value) if int(value) >= 0 else None)
_BREAKPOINTS = _note("the observations of pdb always show the breakpoints that a call sets or moves", Fate.NEEDLESS)
_FROM_MANIFESTS = _note("the file or address that dgym benchmark import reads takes its place")
_PATH = _field("run", "path", str)
_TERMINAL: dict[str, Rule] = {
    "type": _set_terminal,
    "base_image": _set_image,
    "setup_commands": _set_setup,
    "mem_limit": _set_memory,
    "command_timeout": _note("bash and eval have time limits of their own"),
    "extra_labels": _note("labels of pods come from the pod template of the chart"),
    "pod_spec_kwargs": _note("the pod template of the chart, or podOverrides of the Episode"),
    "kube_config": _note("dgym submit uses KUBECONFIG", Fate.NEEDLESS),
    "kube_context": _note("dgym submit --context"),
    "session_commands": _field("task", "activate", lambda value: " && ".join(_texts(value)) or None),
    "env_vars": _field(
        "task", "env", lambda value: [{"name": str(name), "value": str(item)} for name, item in dict(value).items()]
    ),
}


def _read_elsewhere(_migration: Migration, _key: str, _value: Any) -> None:
    """The key is read elsewhere."""


_TASK_KEYS: dict[str, Rule] = {
    "path": _PATH,
    "entrypoint": _field("task", "entrypoint"),
    # dgym starts the program under its own pdb.
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
    "task_data.init_git": _note("the workspace of a localPath is a git repository", Fate.NEEDLESS),
    "env_kwargs.data_path": _FROM_MANIFESTS,
    "env.run_timeout": _set_timeout,
    "env_kwargs.auto_view_change": _note("the observation of a rewrite always shows the change", Fate.NEEDLESS),
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
        _note("templates know other variables here; agent.parameters.systemPrompt names one"),
    ),
    "use_conversational_prompt": _note("prompts are always conversations", Fate.NEEDLESS),
    "save_patch": _note("the patch is always stored, as patch.diff", Fate.NEEDLESS),
    "log_prompt_response_pairs": _note("the trajectory always holds what was sent and answered", Fate.NEEDLESS),
    "uuid": _note("a run is found again by what it ran, not by a name: the same command resumes", Fate.NEEDLESS),
    "tools": _set_tools,
    "output_path": _field("run", "results"),
    "terminal.registry": _note("name the image with its registry"),
    "terminal.namespace": _note("metadata.namespace of the manifest, or kubectl --namespace"),
    **dict.fromkeys(PARAMETERS, _set_parameter),
    **{f"{part}.{name}": rule for part in ("env_kwargs", "task_data", "dataset") for name, rule in _TASK_KEYS.items()},
    **{f"{prefix}{name}": rule for prefix in ("terminal.", "env_kwargs.terminal.") for name, rule in _TERMINAL.items()},
    **{f"{prefix}{name}": _set_pdb for prefix in ("", "env_kwargs.") for name in TOOL_OPTIONS["pdb"]},
}
