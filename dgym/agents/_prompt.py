"""The first two messages of an episode's requests, and the requests that the exchanges of its trajectory record."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dgym.agents._base import find_file
from dgym.agents._chat import Exchange, shorten_to_tokens
from dgym.api import STANDARD_TOOLS
from dgym.env import InfoDict
from dgym.errors import ManifestError, PluginError
from dgym.llm import Message, ToolDefinition, describe_tools, render_call

if TYPE_CHECKING:
    from jinja2 import Environment, Template

SHARES = {"task": 0.15, "tree": 0.1, "evaluation": 0.2}
"""Maximum share of the context window per section."""
_REMOVED = {
    "file": "the observation of a call shows the file",
    "breakpoints": "the observations of pdb show them",
}
"""Former variables of templates, and what replaces each. Shown in the error if a template uses one."""
_PROMPTS = Path(__file__).parent / "prompts"
_MOST_MESSAGES = 10_000
"""Maximum number of messages in one request. An episode of 1,000 steps has about 2,000."""
_MOST_IN_ALL = 4_000_000
"""Maximum number of messages in all requests of a trajectory. It limits the cost of reading a hostile trajectory."""


class Prompt:
    """Renders the system message and the task message.

    Args:
        system: Template of the system message. None: dgym's template.
        task: Template of the task message. None: dgym's template.
        base: Directory for relative paths of templates; see ``find_file``.
        count: Counts the tokens of messages.

    Raises:
        ManifestError: A template cannot be read or is invalid.
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
        """Return the system message and the task message.

        Args:
            info: The info of the reset.
            tools: The tools that are offered first.
            tree: The file tree; empty if it is not shown.
            eval_on_rewrite: Whether the tests run after every rewrite.
            window: The context window in tokens.
            in_text: Whether the model calls tools by text. The system message then describes the tools.

        Raises:
            ManifestError: A template cannot be rendered.
        """
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
        return shorten_to_tokens(text.strip("\n"), int(tokens), lambda part: self._count(_as_message(part)))


def _as_message(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


class InlineTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template whose text is in the manifest."""

    inline: str


def check_template(given: str | InlineTemplate | None, base: Path | None, name: str) -> None:
    """Load and render the template of the parameter ``<name>Prompt`` as a check.

    Raises:
        ManifestError: The template cannot be read, is invalid, or uses an unknown variable.
    """
    template = _template(given, base, name)
    known: dict[str, Any] = {"tools": list(STANDARD_TOOLS), "instructions": defaultdict(str), "eval_on_rewrite": False}
    _render(template, {**known, **dict.fromkeys(SHARES, ""), "notices": []})


def digest_template(given: str | InlineTemplate | None, base: Path | None, name: str) -> str:
    """Return the SHA-256 of a template and of all templates that it includes or extends by a literal name.

    Raises:
        ManifestError: The template cannot be read or is invalid.
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
            except TemplateError:  # The include may be marked "ignore missing".
                continue
    return total.hexdigest()


def _template(given: str | InlineTemplate | None, base: Path | None, name: str) -> "Template":
    _environment(_PROMPTS)  # Raises PluginError if jinja2 is not installed.
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


@lru_cache(maxsize=64)
def _environment(directory: Path) -> "Environment":
    """Return an environment that finds templates in ``directory`` first, and then dgym's templates.

    It keeps compiled templates and compiles those again whose files have changed.
    """
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
    """Return the system prompt's section about a tool, for a tool that is offered later in the episode.

    Empty if the system prompt does not have such a section.
    """
    path = _PROMPTS / f"{tool}.j2"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _render(template: "Template", known: Mapping[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        return template.render(known).strip() + "\n"
    except TemplateError as error:
        gone = next((f"; {why}" for name, why in _REMOVED.items() if f"'{name}' is undefined" in str(error)), "")
        raise ManifestError(f"the prompt template {template.filename} cannot be used: {error}{gone}") from None


def read_exchanges(recorded: Any) -> list[Exchange | None]:
    """Decode the ``exchanges`` of a line of a trajectory.

    Returns:
        None for each exchange that cannot be decoded. Users may have edited the file.
    """
    if not isinstance(recorded, list | tuple):
        return [None] if recorded else []
    return [_read_exchange(each) for each in recorded]


def _read_exchange(recorded: Any) -> Exchange | None:
    try:
        return msgspec.convert(recorded, Exchange)
    except msgspec.ValidationError:
        return None


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was sent.

    Attributes:
        numbers: Numbers of the messages, in order. The number of a message is its index in ``known``.
        new: The numbers that the previous request did not have.
        removed: Number of messages of the previous request that were replaced by stubs.
        tools: Names of the tools, in order.
        known: All messages that were sent up to this request, and possibly later ones.
        exchange: The recorded exchange, including the reply.
    """

    numbers: tuple[int, ...]
    new: frozenset[int]
    removed: int
    tools: tuple[str, ...]
    known: Sequence[Message]
    exchange: Exchange

    @property
    def messages(self) -> list[Message]:
        """The messages, in order."""
        return [self.known[number] for number in self.numbers]


def sent_requests(exchanges: Iterable[Exchange | None]) -> Iterator[SentRequest | None]:
    """Yield the request of each exchange.

    Yields None if the request cannot be reconstructed, because one of its messages is missing or because it has more
    messages than the limits allow. After an exchange that is None, all requests are None, because the numbers of the
    following messages are unknown.
    """
    known: list[Message] = []
    before: frozenset[int] = frozenset()
    tools: tuple[str, ...] = ()
    left = _MOST_IN_ALL
    for exchange in exchanges:
        if exchange is None:
            left = 0
            yield None
            continue
        known += exchange.messages
        tools = exchange.tools or tools
        count = sum(max(0, last - first + 1) for first, last in exchange.sent)
        in_range = all(0 <= first <= last < len(known) for first, last in exchange.sent)
        if not in_range or count > min(left, _MOST_MESSAGES):
            yield None
            continue
        left -= count
        numbers = tuple(number for first, last in exchange.sent for number in range(first, last + 1))
        present = frozenset(numbers)
        removed = sum(max(0, last - first + 1) for first, last in exchange.removed)
        yield SentRequest(
            numbers=numbers, new=present - before, removed=removed, tools=tools, known=known, exchange=exchange
        )
        before = present


def sent_before(steps: Iterable[Sequence[Exchange | None]]) -> list[list[SentRequest | None]]:
    """Return the requests of each step; see ``sent_requests``. A step is given by its exchanges."""
    exchanges = list(steps)
    requests = sent_requests(chain.from_iterable(exchanges))
    return [list(islice(requests, len(each))) for each in exchanges]


def asking_steps(steps: Iterable[Sequence[Exchange | None]]) -> list[int | None]:
    """Return, for each step, the index of the step whose last reply contains the step's call.

    This is the step itself, or an earlier step if the reply has several calls. It is None if the call does not come
    from a model. A step is given by its exchanges.
    """
    found: list[int | None] = []
    asked, left = None, 0
    for place, exchanges in enumerate(steps):
        if exchanges:
            last = exchanges[-1]
            asked, left = place, max(1, len(last.calls) if last is not None else 0)
        found.append(asked if left > 0 else None)
        left -= 1
    return found


def message_parts(message: Message) -> list[tuple[str, str]]:
    """Return the name and text of each part of a message, as it was sent.

    The order is: extra fields that are sent back to the server, the text (its name is empty), the calls. Empty parts
    are left out.
    """
    parts = [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in message.extra.items()
    ]
    parts.append(("", message.content))
    functions = [render_call(call)["function"] for call in message.calls]
    parts += [(f"call {function['name']}", function["arguments"]) for function in functions]
    return [(name, text) for name, text in parts if text]
