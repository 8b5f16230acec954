"""One agent's section of debug-gym's configuration, key by key, in the terms of dgym."""

import re
import shlex
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from dgym.cli.migrate.config import Fate, Note, Section

THINKING = frozenset({"debug_agent", "rewrite_agent", "debug_5_agent"})
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

TOOLS = {"edit": "rewrite", "patcher": "rewrite", **{name: name for name in (
    "bash", "eval", "grep", "listdir", "pdb", "rewrite", "submit", "view"
)}}  # fmt: skip

_PDB = re.compile(r"(^|\s)-m pdb(\s+-c\s+\S+)*(?=\s)")
_PIP = re.compile(r"^(?:python3?\s+-m\s+)?pip3?\s+install\s+(.+)$")
_PLAIN_IMAGE = re.compile(r"^(docker\.io/)?(library/)?python(:[\w.-]+)?$")
_MAXIMUM_SECONDS = 3600


class Migration:
    """What the keys of one section come to: parts of a task, of an agent and its tools, and notes.

    Every key has one method here, so that what happens to it stands in one place. Nested keys are written with a dot.
    ``origins`` are the keys that the fields of the task are from.
    """

    def __init__(self, section: Section) -> None:
        self.name = section.name
        self.task: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.agent: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.tools: list[Any] = []
        self.pdb_options: dict[str, Any] = {}
        self.benchmark: str | None = None
        self.problems: Any = "all"
        self.path: str | None = None
        self.results: str | None = None
        self.notes: list[Note] = []
        kind = section.values.get("agent_type", section.name)
        self.agent["name"] = AGENTS.get(str(kind), str(kind))
        self._walk(section.values, "")

    def _walk(self, values: Mapping[Any, Any], prefix: str) -> None:
        for name, value in values.items():
            key = f"{prefix}{name}"
            if key in NESTED and isinstance(value, dict):
                self._walk(value, f"{key}.")
            elif value is None:
                continue
            elif key in ALWAYS:
                self.note(key, ALWAYS[key], Fate.NEEDLESS)
            elif key in LOST:
                self.note(key, LOST[key])
            elif key in KEYS:
                self._convert(key, value)
            else:
                self.note(key, "not a key of debug-gym that dgym knows")

    def _convert(self, key: str, value: Any) -> None:
        try:
            KEYS[key](self, key, value)
        except (TypeError, ValueError, InvalidOperation):
            self.note(key, f"{value!r} is not a value for it")
        self.origins = {field: self.origins.get(field, key) for field in self.task}

    def note(self, key: str, text: str, fate: Fate = Fate.LOST) -> None:
        """Record what became of ``key``."""
        self.notes.append(Note(self.name, key, text, fate))

    # What is tried

    def _set_path(self, _key: str, value: Any) -> None:
        self.path = str(value)

    def _set_benchmark(self, _key: str, value: Any) -> None:
        self.benchmark = None if value in ("custom", "local") else str(value)

    def _set_problems(self, _key: str, value: Any) -> None:
        self.problems = value

    def _set_entrypoint(self, _key: str, value: Any) -> None:
        self.task["entrypoint"] = _text(value)

    def _set_debug_entrypoint(self, _key: str, value: Any) -> None:
        # dgym starts the program under its own pdb.
        self.task["debugEntrypoint"] = _PDB.sub("", _text(value)).strip()

    def _set_timeout(self, key: str, value: Any) -> None:
        seconds = int(value)
        self.task["entrypointTimeoutSeconds"] = min(max(1, seconds), _MAXIMUM_SECONDS)
        if not 1 <= seconds <= _MAXIMUM_SECONDS:
            self.note(key, f"{seconds} is out of bounds; 1 to {_MAXIMUM_SECONDS} is possible", Fate.CHANGED)

    def _set_patterns(self, _key: str, value: Any) -> None:
        self.task["readOnlyPatterns"] = [_text(item) for item in value]

    def _set_instructions(self, _key: str, value: Any) -> None:
        self.task["instructions"] = _text(value)

    # The machine

    def _set_terminal(self, key: str, value: Any) -> None:
        if value not in ("local", "docker", "kubernetes"):
            self.note(key, f"{value!r} is no kind of sandbox; dgym run --sandbox chooses one")

    def _set_image(self, key: str, value: Any) -> None:
        if _PLAIN_IMAGE.match(_text(value)):
            text = "holds nothing but Python; requirements are installed into a virtual environment instead"
            self.note(key, f"{value} {text}", Fate.NEEDLESS)
        else:
            self.task["image"] = _text(value)

    def _set_setup(self, key: str, value: Any) -> None:
        for command in [value] if isinstance(value, str) else value:
            match = _PIP.match(_text(command).strip())
            packages = shlex.split(match[1]) if match else []
            if packages and not any(word.startswith(("-", ".", "/")) for word in packages):
                # pytest is there without asking.
                more = [package for package in packages if package != "pytest"]
                if more:
                    self.task.setdefault("requirements", []).extend(more)
                if "image" in self.task:
                    text = "in a container the image must hold these packages"
                    self.note(key, f"{command!r}: {text}", Fate.CHANGED)
            else:
                self.task.setdefault("setupCommands", []).append(_text(command))
                text = "runs without network; what it downloads belongs in the image"
                self.note(key, f"{command!r} {text}", Fate.CHANGED)

    def _set_session(self, _key: str, value: Any) -> None:
        commands = [value] if isinstance(value, str) else [_text(item) for item in value]
        if commands:
            self.task["activate"] = " && ".join(commands)

    def _set_variables(self, _key: str, value: Any) -> None:
        self.task["env"] = [{"name": str(name), "value": str(item)} for name, item in dict(value).items()]

    # The agent

    def _set_model(self, _key: str, value: Any) -> None:
        self.agent["model"] = _text(value)

    def _set_temperature(self, key: str, value: Any) -> None:
        first, *rest = value if isinstance(value, list) else [value]
        self.agent["temperature"] = format(Decimal(str(first)), "f")
        if rest:
            self.note(key, "agents of dgym make one request a step: only the first value was taken", Fate.CHANGED)

    def _set_seed(self, _key: str, value: Any) -> None:
        self.agent["seed"] = int(value)

    def _set_steps(self, _key: str, value: Any) -> None:
        self.agent["maxSteps"] = int(value)

    def _set_rewrites(self, _key: str, value: Any) -> None:
        if int(value) >= 0:
            self.agent["maxRewrites"] = int(value)

    def _set_parameter(self, key: str, value: Any) -> None:
        name = PARAMETERS[key]
        only = {"debug_5_agent"} if name == "rewritesBeforePdb" else THINKING
        if self.agent["name"] not in only:
            self.note(key, f"the agent {self.agent['name']} has no such parameter")
        elif name == "treeDepth":
            self.parameters[name] = min(max(0, int(value)), 20)
        else:
            self.parameters[name] = value if isinstance(value, bool) else max(0, int(value))

    def _set_results(self, _key: str, value: Any) -> None:
        self.results = _text(value)

    # Tools

    def _set_tools(self, key: str, value: Any) -> None:
        for item in value if isinstance(value, list) else str(value).split(","):
            name, options = _tool(item)
            known = TOOLS.get(name.partition(":")[0])
            if known is None:
                self.note(key, f"there is no tool {name!r}; a tool of your own is named package.module:Class")
            elif known not in self.tools:
                self.tools.append(known)
            for option, setting in options.items():
                self._set_tool_option(known, option, setting, f"{key}.{name}.{option}")

    def _set_tool_option(self, tool: str | None, option: str, setting: Any, key: str) -> None:
        if tool == "pdb" and option in PDB_OPTIONS:
            self._set_pdb(option, setting)
        else:
            self.note(key, "the tool has no such option")

    def _set_pdb(self, key: str, value: Any) -> None:
        if value is False:
            self.pdb_options[PDB_OPTIONS[key.rpartition(".")[2]]] = False

    def tool_list(self) -> list[Any]:
        """The tools as a manifest names them, with pdb's options."""
        return [
            {"name": tool, "options": self.pdb_options} if tool == "pdb" and self.pdb_options else tool
            for tool in self.tools
        ]


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} is not text")
    return str(value)


def _tool(item: Any) -> tuple[str, dict[str, Any]]:
    """A tool's name and options, in each of the forms they are written in."""
    if isinstance(item, dict) and "name" in item:
        return str(item["name"]), {key: value for key, value in item.items() if key != "name"}
    if isinstance(item, dict) and len(item) == 1:
        ((name, options),) = item.items()
        return str(name), options if isinstance(options, dict) else {}
    return str(item).strip(), {}


NESTED = frozenset({"env_kwargs", "env", "terminal", "env_kwargs.terminal", "dataset"})
PDB_OPTIONS = {"persistent_breakpoints": "persistentBreakpoints", "auto_list": "autoList"}
PARAMETERS = {
    "memory_size": "memorySize",
    "reset_prompt_history_after_rewrite": "resetHistoryAfterRewrite",
    "n_rewrites_before_pdb": "rewritesBeforePdb",
    "env_kwargs.run_on_rewrite": "evalOnRewrite",
    "env_kwargs.auto_eval_on_rewrite": "evalOnRewrite",
    "env_kwargs.dir_tree_depth": "treeDepth",
    "env_kwargs.show_directory_tree": "treeDepth",
    "show_directory_tree": "treeDepth",
}

ALWAYS = {
    "save_patch": "the patch is always stored, as patch.diff",
    "log_prompt_response_pairs": "the trajectory always holds what was sent and answered",
    "use_conversational_prompt": "prompts are always conversations",
    "env_kwargs.auto_view_change": "the prompt always shows the file in focus, which view and rewrite set",
    "show_current_breakpoints": "the prompt of an agent with pdb always shows the breakpoints",
    "env_kwargs.show_current_breakpoints": "the prompt of an agent with pdb always shows the breakpoints",
    "uuid": "a run is found again by what it ran, not by a name: the same command resumes",
}
LOST = {
    "llm_config_file_path": "models are configured outside of manifests; LLM_CONFIG_FILE_PATH names the file",
    "system_prompt": "prompts are templates in files: agent.parameters.systemPrompt names one",
    "system_prompt_template_file": "templates know other variables here; agent.parameters.systemPrompt names one",
    "env_kwargs.dataset_id": "tasks come from manifests",
    "env_kwargs.dataset_revision": "tasks come from manifests",
    "env_kwargs.split": "tasks come from manifests",
    "env_kwargs.data_path": "tasks come from manifests",
    "dataset.dataset_id": "tasks come from manifests",
    "dataset.dataset_revision": "tasks come from manifests",
    "terminal.registry": "name the image with its registry",
    "terminal.namespace": "metadata.namespace of the manifest, or kubectl --namespace",
}
KEYS: dict[str, Callable[[Migration, str, Any], None]] = {
    "benchmark": Migration._set_benchmark,
    "dataset.type": Migration._set_benchmark,
    "problems": Migration._set_problems,
    "dataset.problems": Migration._set_problems,
    "env_kwargs.path": Migration._set_path,
    "env_kwargs.entrypoint": Migration._set_entrypoint,
    "env_kwargs.debug_entrypoint": Migration._set_debug_entrypoint,
    "env_kwargs.run_timeout": Migration._set_timeout,
    "env.run_timeout": Migration._set_timeout,
    "env_kwargs.readonly_patterns": Migration._set_patterns,
    "env_kwargs.instructions": Migration._set_instructions,
    "agent_type": lambda _migration, _key, _value: None,
    "llm_name": Migration._set_model,
    "llm_temperature": Migration._set_temperature,
    "random_seed": Migration._set_seed,
    "max_steps": Migration._set_steps,
    "max_rewrite_steps": Migration._set_rewrites,
    "max_edit_steps": Migration._set_rewrites,
    "tools": Migration._set_tools,
    "output_path": Migration._set_results,
    **dict.fromkeys(PARAMETERS, Migration._set_parameter),
    **{
        f"{prefix}{name}": function
        for prefix in ("terminal.", "env_kwargs.terminal.")
        for name, function in {
            "type": Migration._set_terminal,
            "base_image": Migration._set_image,
            "setup_commands": Migration._set_setup,
            "session_commands": Migration._set_session,
            "env_vars": Migration._set_variables,
        }.items()
    },
    **{f"{prefix}{name}": Migration._set_pdb for prefix in ("", "env_kwargs.") for name in PDB_OPTIONS},
}
