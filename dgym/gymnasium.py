"""Episodes as environments of Gymnasium. The import of this module registers ``dgym/Repo-v0``.

::

    import gymnasium

    import dgym.gymnasium

    env = gymnasium.make("dgym/Repo-v0", task="task.yaml", max_steps=30)

Since version 1.0 Gymnasium does not find environments without such an import. ``gymnasium.make`` imports the module
itself if the id begins with its name: ``dgym.gymnasium:dgym/Repo-v0``. Other parts of dgym do not import Gymnasium.

Spaces of observations and actions contain texts, JSON values, and calls of tools.
"""

import copyreg
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space

from dgym.api import STANDARD_TOOLS, DebugTask, ToolSpec
from dgym.env import InfoDict, ObservationDict, RepoEnv, check_choice, open_task
from dgym.sandbox import EngineName, SandboxKind
from dgym.session import bounded
from dgym.tools import Signature, Tool, ToolError, ToolParameter, load_tools
from dgym.wire import EndReason, Result

__all__ = ["ENVIRONMENT_ID", "GymnasiumRepoEnv", "JsonValue", "ToolCalls", "UnicodeText", "observation_space"]

ENVIRONMENT_ID = "dgym/Repo-v0"

_BREAKPOINT = {
    "number": 1,
    "file": "calc.py",
    "line": 2,
    "condition": "a > 1",
    "ignore_count": 0,
    "hits": 1,
    "enabled": True,
    "temporary": False,
}
_EXAMPLES: dict[str, tuple[Any, ...]] = {
    "ok": (True, False),
    "truncated_bytes": (0, 4096),
    "exit_status": (None, 0, 1, -9),
    "frame": (None, {"file": "calc.py", "line": 2, "function": "add"}),
    "breakpoints": (None, [], [_BREAKPOINT], [{**_BREAKPOINT, "condition": None, "temporary": True}]),
    "diff": (None, "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a\n+b\n"),
    "score": (None, {"score": 1, "max_score": 3}),
    "focus_file": (None, "calc.py", "src/größe.py"),
    "end_reason": (None, *(reason.value for reason in EndReason if reason.is_counted)),
}
"""Examples for each key of an observation, from which ``sample`` of its space chooses."""
Seed = int | np.random.Generator | None
_LONGEST = 40
"""Maximum number of characters of a sampled text, unless it must be longer."""
_SPREAD = 100
"""Size of the range of drawn numbers without a minimum or maximum."""
_DEEP = 4
"""Maximum number of levels of nesting of drawn values."""
_TRIES = 30
"""How often a value is drawn until it is valid. Drawing ignores some constraints of a schema."""
_SURROGATES = range(0xD800, 0xE000)
_CHARACTERS = 0x110000


class UnicodeText(Space[str]):
    """All texts that can be encoded as UTF-8, of any length, including the empty text."""

    @property
    def is_np_flattenable(self) -> bool:
        """False, because texts do not have a fixed length."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:  # noqa: ARG002 - of Gymnasium's signature
        """Return a short text, half of its characters ASCII and half from all of Unicode."""
        return draw_text(self.np_random)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is text without surrogates."""
        return isinstance(x, str) and not any("\ud800" <= character <= "\udfff" for character in x)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "UnicodeText()"


class JsonValue(Space[Any]):
    """JSON values (None, numbers, texts, lists, dictionaries) of a Python type. ``sample`` returns one of the examples.

    Args:
        kind: The type, for msgspec: ``int | None``, a ``TypedDict`` and so on. Conversions are strict.
        examples: Values of the type.
    """

    def __init__(self, kind: Any, examples: Sequence[Any], seed: Seed = None) -> None:
        super().__init__(seed=seed)
        self.kind = kind
        self.examples = tuple(examples)

    @property
    def is_np_flattenable(self) -> bool:
        """False, because values do not have a fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:  # noqa: ARG002
        """Return one of the examples."""
        return deepcopy(self.examples[int(self.np_random.integers(len(self.examples)))])

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a value of the type."""
        return _fits(x, self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonValue) and (self.kind, self.examples) == (other.kind, other.examples)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"JsonValue({self.kind})"


class ToolCalls(Space[dict[str, Any]]):
    """All calls ``{"tool": …, "arguments": {…}}`` that the tools accept.

    ``sample`` returns only valid calls: examples of the tools, or arguments that are drawn from their schemas. A tool
    without examples is not sampled if a required argument cannot be drawn.

    Args:
        tools: The tools.
        words: Texts that are likely to be useful arguments, such as paths of files.
    """

    def __init__(self, tools: Iterable[Tool], *, words: Sequence[str] = (), seed: Seed = None) -> None:
        super().__init__(seed=seed)
        tools = list(tools)
        # Not the tools themselves, because a space is copied and pickled, which a tool may not support.
        self.signatures: dict[str, Signature] = {tool.name: tool.signature for tool in tools}
        self.words = tuple(words)
        self._examples = {tool.name: [*_examples(tool)] for tool in tools}
        random = np.random.default_rng(0)
        self._drawn = {name for name, signature in self.signatures.items() if self._draw(signature, random) is not None}
        self._sampled = [name for name in self.signatures if name in self._drawn or self._examples[name]]

    @property
    def is_np_flattenable(self) -> bool:
        """False, because calls do not have a fixed shape."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Return a valid call of a tool. All tools have the same probability."""
        name = self._sampled[int(self.np_random.integers(len(self._sampled)))]
        examples = self._examples[name]
        arguments = None
        if name in self._drawn and not (examples and self.np_random.integers(3) == 0):
            arguments = self._draw(self.signatures[name], self.np_random)
        if arguments is None and examples:
            arguments = deepcopy(examples[int(self.np_random.integers(len(examples)))])
        return self.sample() if arguments is None else {"tool": name, "arguments": arguments}

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` names a tool and has valid arguments for it."""
        if not isinstance(x, Mapping) or not x.keys() <= {"tool", "arguments"}:
            return False
        name, arguments = x.get("tool"), x.get("arguments", {})
        signature = self.signatures.get(name) if isinstance(name, str) else None
        if signature is None or not isinstance(arguments, Mapping):
            return False
        return all(isinstance(key, str) for key in arguments) and not signature.check(arguments)[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCalls) and self._schemas() == other._schemas()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ToolCalls({', '.join(self.signatures)})"

    def _schemas(self) -> dict[str, dict[str, Any]]:
        return {name: signature.json_schema for name, signature in self.signatures.items()}

    def _draw(self, signature: Signature, random: np.random.Generator) -> dict[str, Any] | None:
        """Draw arguments for ``signature``; None if a required argument could not be drawn."""
        drawing = _Drawing(random, signature.definitions, self.words)
        arguments = {}
        for parameter in signature.parameters:
            if parameter.required or random.integers(2):
                fitting = drawing.argument(parameter)
                if fitting:
                    arguments[parameter.name] = fitting[0]
                elif parameter.required:
                    return None
        return arguments


class _Drawing:
    """Draws values from common parts of a JSON Schema. Other constraints are satisfied by repeated drawing."""

    def __init__(self, random: np.random.Generator, definitions: Mapping[str, Any], words: Sequence[str]) -> None:
        self._random = random
        self._definitions = definitions
        self._words = words

    def argument(self, parameter: ToolParameter) -> list[Any]:
        """Return a list with one valid value for ``parameter``, or an empty list if none was found."""
        for _ in range(_TRIES):
            value = self._value(parameter.schema, 0)
            if _fits(value, parameter.type):
                return [value]
        return []

    def _value(self, schema: Mapping[str, Any], depth: int) -> Any:
        if "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        if depth > _DEEP:
            return None
        if "anyOf" in schema:
            return self._value(self._one_of(schema["anyOf"]), depth)
        if "enum" in schema:
            return self._one_of(schema["enum"])
        match schema.get("type", "string"):
            case "boolean":
                return bool(self._random.integers(2))
            case "integer":
                return int(_multiple(self._random.integers(*_bounds(schema), endpoint=True), schema))
            case "number":
                return float(_multiple(self._random.uniform(*_bounds(schema)), schema))
            case "string":
                return self._text(schema.get("minLength", 0), schema.get("maxLength"))
            case "array":
                count = schema.get("minItems", 0) + int(self._random.integers(2))
                return [self._value(schema.get("items") or {}, depth + 1) for _ in range(count)]
            case "object":
                properties = schema.get("properties", {})
                return {name: self._value(properties[name], depth + 1) for name in schema.get("required", ())}
            case _:
                return None

    def _one_of(self, values: Sequence[Any]) -> Any:
        return values[int(self._random.integers(len(values)))]

    def _text(self, low: int, high: int | None) -> str:
        words = [word for word in self._words if low <= len(word) <= (len(word) if high is None else high)]
        if words and self._random.integers(2):
            return str(self._one_of(words))
        return draw_text(self._random, low, high).replace("\0", "0")


def draw_text(random: np.random.Generator, low: int = 0, high: int | None = None) -> str:
    """Return a text of ``low`` to ``high`` characters, half of them ASCII and half from all of Unicode."""
    most = max(low, _LONGEST)
    length = int(random.integers(low, most if high is None else min(most, high), endpoint=True))
    return "".join(_draw_character(random) for _ in range(length))


def _draw_character(random: np.random.Generator) -> str:
    if random.integers(2):
        return chr(int(random.integers(0x20, 0x7F)))
    code = int(random.integers(_CHARACTERS - len(_SURROGATES)))
    return chr(code if code < _SURROGATES.start else code + len(_SURROGATES))


def _bounds(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the range from which a number is drawn. Exclusive bounds are satisfied by repeated drawing."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = min(0, high or 0) - _SPREAD
    return low, max(0, low) + _SPREAD if high is None else high


def _multiple(number: Any, schema: Mapping[str, Any]) -> Any:
    step = schema.get("multipleOf")
    return number if step is None else number // step * step


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def _make_meta(bounds: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**bounds)


# Spaces are copied and pickled with the types of parameters, and msgspec does not make ``Meta`` picklable.
copyreg.pickle(msgspec.Meta, lambda meta: (_make_meta, (dict(meta.__rich_repr__()),)))


def _examples(tool: Tool) -> Iterable[dict[str, Any]]:
    """Yield the arguments of the tool's examples that are valid calls of the tool."""
    for example in tool.examples:
        name, _, rest = example.partition(" ")
        try:
            arguments = tool.parse_text(rest) if name == tool.name else None
        except ToolError:
            continue
        if arguments is not None and not tool.signature.check(arguments)[1]:
            yield arguments


class GymnasiumRepoEnv(gymnasium.Env[dict[str, Any], Any]):
    """A repository with a bug, created by ``gymnasium.make("dgym/Repo-v0", task=…)``.

    Observations are equal to those of ``RepoEnv``, except that a long diff is shortened like the text. A key that does
    not apply has the value None, which its space contains. ``info`` is that of ``RepoEnv`` without the keys whose value
    is None, because vector environments cannot merge None.

    Args:
        task: A ``DebugTask``, the path of a manifest with one DebugTask or one Episode, or the name of a bundled task.
        actions: The kind of actions in ``action_space``: "calls" of tools or "texts". ``step`` always accepts both.

    The other arguments are those of ``RepoEnv``.

    Attributes:
        repo: The wrapped ``RepoEnv``, for ``patch()``, ``trajectory()`` and ``result``.
    """

    # Gymnasium's environment checker requires a frame rate, which has no effect here.
    metadata: ClassVar[dict[str, Any]] = {**RepoEnv.metadata, "render_fps": 1}  # type: ignore[misc]

    def __init__(
        self,
        task: DebugTask | str | Path,
        *,
        tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool] = STANDARD_TOOLS,
        actions: Literal["calls", "texts"] = "calls",
        sandbox: SandboxKind = "auto",
        engine: EngineName = "auto",
        python: str | None = None,
        build_requirements: bool = False,
        max_steps: int = 50,
        max_rewrites: int | None = None,
        deadline_seconds: float | None = 3600.0,
        render_mode: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        check_choice("actions", actions, ("calls", "texts"))
        task = open_task(task)
        self.repo = RepoEnv(
            task,
            tools=tools,
            sandbox=sandbox,
            engine=engine,
            python=python,
            build_requirements=build_requirements,
            max_steps=max_steps,
            max_rewrites=max_rewrites,
            deadline_seconds=deadline_seconds,
            render_mode=render_mode,
            progress=progress,
        )
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = UnicodeText() if actions == "texts" else _calls(tools, task)
        self._was_reset = False

    @property
    def result(self) -> Result | None:
        """The result of the episode; None before it is scored."""
        return self.repo.result

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a new episode. ``options`` are those of ``RepoEnv.reset``."""
        super().reset(seed=seed)
        self._was_reset = True
        observation, info = self.repo.reset(seed=seed, options=options)
        return _observation(observation), _info(info)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute one call: ``{"tool": …, "arguments": {…}}`` or a line of text."""
        observation, reward, terminated, truncated, info = self.repo.step(action)
        return _observation(observation), reward, terminated, truncated, _info(info)

    def render(self) -> str | None:
        """Return the text of the last observation in render mode "ansi"."""
        return self.repo.render()

    def close(self) -> None:
        """Close the environment. An unfinished episode is not scored. Idempotent."""
        # Closing ``repo`` starts a thread for blocking calls. AsyncVectorEnv closes an environment that was never reset
        # just before it forks, when such a thread must not exist.
        if self._was_reset:
            self.repo.close()


def observation_space() -> spaces.Dict:
    """Return the space of observations, which is the same for all tasks. It is derived from ``ObservationDict``."""
    return spaces.Dict(
        {
            name: UnicodeText() if kind is str else JsonValue(kind, _EXAMPLES[name])
            for name, kind in get_type_hints(ObservationDict).items()
        }
    )


def _calls(tools: Sequence[str | Mapping[str, Any] | ToolSpec | Tool], task: DebugTask) -> ToolCalls:
    specs = [msgspec.convert(tool, ToolSpec) if isinstance(tool, Mapping) else tool for tool in tools]
    files = task.spec.source.files if task.spec.source is not None else ()
    return ToolCalls(load_tools(specs), words=[".", *(file.path for file in files)])


def _observation(view: ObservationDict) -> dict[str, Any]:
    bounds = {} if view["diff"] is None else {"diff": bounded(view["diff"])[0]}
    return {**view, **bounds}


def _info(info: InfoDict) -> dict[str, Any]:
    """Return a copy without None. It is a deep copy, because users of Gymnasium may keep and change it."""
    return {key: deepcopy(value) for key, value in info.items() if value is not None}


gymnasium.register(
    id=ENVIRONMENT_ID,
    entry_point=f"{__name__}:{GymnasiumRepoEnv.__name__}",
    # The output of programs contains times and addresses.
    nondeterministic=True,
)
