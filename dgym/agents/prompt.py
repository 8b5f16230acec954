"""The messages that begin every request to the model.

The system message holds what never changes (how to work, the tools), the task message the episode's state: tree,
breakpoints, tests, the file in focus. Both are Jinja templates; users may replace them, by a path or inline. Each
section has a share of the context window, so that a long traceback cannot push out everything else.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dgym.agents.base import STANDARD_TOOLS, find_file
from dgym.agents.memory import shorten_to_tokens
from dgym.env import InfoDict
from dgym.errors import ManifestError, PluginError
from dgym.llm import Message

if TYPE_CHECKING:
    from jinja2 import Environment, Template

Views = Mapping[str, str]

SHARES = {"task": 0.15, "tree": 0.1, "evaluation": 0.2, "file": 0.25}
"""The largest part of the window that a section takes."""
_WINDOW = 128_000
"""Assumed for models whose window is not known."""
_PROMPTS = Path(__file__).parent / "prompts"


class Prompt:
    """Renders the head of a request.

    Raises:
        ManifestError: A template of the user's cannot be read or is not valid.
    """

    def __init__(
        self,
        system: "str | InlineTemplate | None" = None,
        task: "str | InlineTemplate | None" = None,
        *,
        base: Path | None,
        count: Callable[[Sequence[Message]], int],
    ) -> None:
        self._count = count
        self._system = _template(system, base, "system")
        self._task = _template(task, base, "task")

    def head(
        self, info: InfoDict, views: Views, *, eval_on_rewrite: bool, window: int | None, scale: float = 1.0
    ) -> list[Message]:
        """System and task message; ``views`` are the texts ``tree`` and ``file``.

        ``scale`` shrinks the shares of everything but the task itself.
        """
        limit = window or _WINDOW
        task = info["instructions"].get("task", "")
        texts = {"evaluation": info.get("evaluation") or "", "tree": "", "file": "", **views}
        sections = {name: self._shorten(text, limit * SHARES[name] * scale) for name, text in texts.items()}
        tools = [tool["name"] for tool in info["tools"]]
        known = {
            "tools": tools,
            "instructions": {name: info["instructions"].get(name, "") for name in tools},
            "breakpoints": info.get("breakpoints") or [],
            "notices": info.get("notices") or [],
            "eval_on_rewrite": eval_on_rewrite,
            "task": self._shorten(task, limit * SHARES["task"]),
            **sections,
        }
        return [
            Message(role="system", content=_render(self._system, known)),
            Message(role="user", content=_render(self._task, known)),
        ]

    def _shorten(self, text: str, tokens: float) -> str:
        return shorten_to_tokens(text.strip("\n"), int(tokens), lambda part: self._count(_said(part)))


def _said(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


class InlineTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template that is written in the manifest."""

    inline: str


def check_template(given: str | InlineTemplate | None, base: Path | None, name: str) -> None:
    """Read the template for the parameter ``<name>Prompt``.

    Raises:
        ManifestError: It cannot be read, is not valid, or uses a name that templates do not have.
    """
    template = _template(given, base, name)
    known: dict[str, Any] = {"tools": list(STANDARD_TOOLS), "instructions": defaultdict(str), "eval_on_rewrite": False}
    _render(template, {**known, **dict.fromkeys(SHARES, ""), "breakpoints": [], "notices": []})


def _template(given: str | InlineTemplate | None, base: Path | None, name: str) -> "Template":
    _environment(_PROMPTS)  # Reports a missing jinja2.
    from jinja2 import TemplateError, TemplateSyntaxError

    where = f"{name}Prompt.inline"
    try:
        if isinstance(given, InlineTemplate):
            template = _environment(_PROMPTS).from_string(given.inline)
            template.filename = where
            return template
        path = _PROMPTS / f"{name}.j2" if given is None else find_file(given, base)
        where = str(path)
        return _environment(path.parent).get_template(path.name)
    except (OSError, TemplateError, UnicodeDecodeError) as error:
        line = f":{error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise ManifestError(f"the prompt template {where}{line} cannot be used: {error}") from None


def _environment(directory: Path) -> "Environment":
    """Templates beside ``directory`` can include and extend dgym's own, which are found after them."""
    try:
        from jinja2 import FileSystemLoader, StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise PluginError("agents that use a model need templates: pip install 'dgym[agent]'") from None
    return ImmutableSandboxedEnvironment(
        loader=FileSystemLoader([directory, _PROMPTS]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )


def _render(template: "Template", known: Mapping[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        return template.render(known).strip() + "\n"
    except TemplateError as error:
        raise ManifestError(f"the prompt template {template.filename} cannot be used: {error}") from None
