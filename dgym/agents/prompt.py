"""The messages that begin an episode's requests: how to work, and the task with what is known of it at the start.

Both are Jinja templates; users may replace them, by a path or inline. Each section has a share of the context window,
so that a long traceback cannot push out everything else.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dgym.agents.base import STANDARD_TOOLS, find_file
from dgym.agents.conversation import shorten_to_tokens
from dgym.env import InfoDict
from dgym.errors import ManifestError, PluginError
from dgym.llm import Message, ToolDefinition, describe_tools

if TYPE_CHECKING:
    from jinja2 import Environment, Template

SHARES = {"task": 0.15, "tree": 0.1, "evaluation": 0.2}
"""The largest part of the window that a section takes."""
_REMOVED = {
    "file": "the observation of a call shows the file",
    "breakpoints": "the observations of pdb show them",
}
"""Names that templates had, and what replaces each."""
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
        self,
        info: InfoDict,
        tools: Sequence[ToolDefinition],
        tree: str,
        *,
        eval_on_rewrite: bool,
        window: int,
        in_text: bool = False,
    ) -> list[Message]:
        """System and task message. ``in_text``: the model calls tools by text, so the system message describes them."""
        texts = {
            "task": info["instructions"].get("task", ""),
            "tree": tree,
            "evaluation": info.get("evaluation") or "",
        }
        names = [str(tool["name"]) for tool in tools]
        known = {
            "tools": names,
            "instructions": {name: info["instructions"].get(name, "") for name in names},
            "notices": info.get("notices") or [],
            "eval_on_rewrite": eval_on_rewrite,
            **{name: self._shorten(text, window * SHARES[name]) for name, text in texts.items()},
        }
        system = _render(self._system, known)
        if in_text:
            system = f"{system}\n{describe_tools(tools)}\n"
        return [Message(role="system", content=system), Message(role="user", content=_render(self._task, known))]

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
    _render(template, {**known, **dict.fromkeys(SHARES, ""), "notices": []})


def digest_template(given: str | InlineTemplate | None, base: Path | None, name: str) -> str:
    """The SHA-256 of a template's text and of the templates that it includes or extends by a literal name.

    Raises:
        ManifestError: It cannot be read, or is not valid.
    """
    from jinja2 import TemplateError
    from jinja2.meta import find_referenced_templates

    template = _template(given, base, name)
    if isinstance(given, InlineTemplate):
        texts, directory = [given.inline], _PROMPTS
    else:
        path = Path(template.filename or "")
        texts, directory = [path.read_text(encoding="utf-8")], path.parent
    environment, names, total = _environment(directory), list[str](), hashlib.sha256()
    while texts:
        text = texts.pop()
        total.update(text.encode() + b"\0")
        for other in find_referenced_templates(environment.parse(text)):
            if other is None or other in names or environment.loader is None:
                continue
            names.append(other)
            try:
                texts.append(environment.loader.get_source(environment, other)[0])
            except TemplateError:  # An include may be optional.
                continue
    return total.hexdigest()


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


def advice(tool: str) -> str:
    """How to work with a tool that becomes available during the episode, as the system prompt would say it."""
    path = _PROMPTS / f"{tool}.j2"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _render(template: "Template", known: Mapping[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        return template.render(known).strip() + "\n"
    except TemplateError as error:
        gone = next((f"; {why}" for name, why in _REMOVED.items() if f"'{name}' is undefined" in str(error)), "")
        raise ManifestError(f"the prompt template {template.filename} cannot be used: {error}{gone}") from None
