"""The configured models by name, and ``dgym llm check``: one short request to each endpoint of a model."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from dgym.errors import ModelConfigError, ModelError
from dgym.llm.config import ModelEntry, ModelSettings, Secret, default_path, hub_token, read_entries
from dgym.llm.protocol import Message, Model, Reply
from dgym.llm.remote import RemoteModel
from dgym.llm.tokens import TokenCounter, load_tokenizer

HUMAN = "human"
OpenHuman = Callable[[], Model]


def load_models(path: str | Path | None = None, *, human: OpenHuman | None = None, origin: str = "") -> "ModelCatalog":
    """The models of ``path``, else of ``LLM_CONFIG_FILE_PATH``, else of ``~/.config/dgym/llm.yaml`` if there is one.

    Args:
        path: The configuration file; it must exist.
        human: Makes the model ``human``, such as ``dgym.agents.HumanModel``; None: it cannot be opened.
        origin: The file's name in messages, such as a value of the chart; empty: its path.

    Raises:
        ModelConfigError: The file is missing or unreadable. The faults of one model's entry are raised when that
            model is opened.
    """
    given = Path(path).expanduser() if path is not None else default_path()
    if path is None and not given.exists():
        return ModelCatalog({}, path=given, human=human, origin=origin)
    return ModelCatalog(read_entries(given, origin=origin), path=given, human=human, origin=origin)


class ModelCatalog:
    """Models by name. A model is opened once; its connections, limits and endpoints are shared by all its episodes."""

    def __init__(
        self, entries: Mapping[str, ModelEntry], *, path: Path, human: OpenHuman | None = None, origin: str = ""
    ) -> None:
        self.path = path
        self._origin = origin
        self.entries = dict(entries)
        self._open_human = human
        self._open: dict[str, Model] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that may be asked for; ``human`` is always there."""
        return (*self.entries, *(() if HUMAN in self.entries else (HUMAN,)))

    def is_interactive(self, name: str) -> bool:
        """Whether a person answers: such episodes run alone, in the main process."""
        return name == HUMAN and HUMAN not in self.entries

    def settings(self, name: str) -> ModelSettings:
        """The settings of a configured model.

        Raises:
            ModelConfigError: There is no such model, or its entry is wrong.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ModelConfigError(self._unknown(name))
        if entry.settings is None:
            raise ModelConfigError(entry.problem or f"{self._origin or self.path}: model {name!r} cannot be used")
        return entry.settings

    def open(self, name: str) -> Model:
        """The model of that name. Fetches its tokenizer the first time, where one is configured.

        Raises:
            ModelConfigError: There is no such model, its entry is wrong, or a package it needs is missing.
        """
        if name not in self._open:
            person = self.is_interactive(name)
            self._open[name] = self._human() if person else open_remote(name, self.settings(name))
        return self._open[name]

    def failures(self) -> Iterator[tuple[str, str, int]]:
        """Model, fault and number of the requests that failed, of every open model."""
        for name, model in self._open.items():
            if isinstance(model, RemoteModel):
                yield from ((name, fault.value, count) for fault, count in model.failures.items())

    async def close(self) -> None:
        """Close every model that was opened."""
        while self._open:
            _, model = self._open.popitem()
            await model.close()

    def _human(self) -> Model:
        if self._open_human is None:
            raise ModelConfigError(f"the model {HUMAN!r} needs a terminal; run it with `dgym run`")
        return self._open_human()

    def _unknown(self, name: str) -> str:
        if self._origin and not self.entries:
            return f"there is no model {name!r}: {self._origin} names none; set it and upgrade the release"
        if not self.path.exists():
            return f"there is no model {name!r}: {self.path} does not exist; `dgym init-llm-config` writes a template"
        guess = difflib.get_close_matches(name, self.names, n=1)
        hint = f"did you mean {guess[0]!r}?" if guess else f"there are: {', '.join(self.names)}"
        return f"{self._origin or self.path}: there is no model {name!r}; {hint}"


def open_remote(name: str, settings: ModelSettings, *, withhold: Callable[[bytes], None] | None = None) -> RemoteModel:
    """A new model with these settings; ``withhold`` gets the bodies of requests, which are not sent then.

    Raises:
        ModelConfigError: A package it needs is missing, or its tokenizer cannot be loaded.
    """
    try:
        from dgym.llm.openai_client import OpenAIConnection
    except ModuleNotFoundError as error:
        raise ModelConfigError(
            f"model {name!r} needs the package {error.name}; install it with: pip install 'dgym[agent]'"
        ) from None
    get_token = None
    if settings.scope is not None:
        from dgym.llm.openai_client import token_source

        get_token = token_source(settings.scope)
    count = {} if settings.tokenizer is None else {"count_text": load_tokenizer(settings.tokenizer, hub_token())}
    connect = partial(OpenAIConnection, settings, get_token=get_token, withhold=withhold)
    return RemoteModel(name, settings, connect, counter=TokenCounter(**count))


def withholding_model(name: str, settings: ModelSettings, keep: Callable[[bytes], None]) -> RemoteModel:
    """A model that gives the body of each request to ``keep`` and raises ``ModelMisconfigured``: nothing is sent.

    Raises:
        ModelConfigError: As ``open_remote``.
    """
    changed = msgspec.structs.replace(settings, api_key=Secret("none"), scope=None, headers={})
    return open_remote(name, changed, withhold=keep)


_SECONDS = 120.0
_TOOL = {
    "name": "ready",
    "description": "Say that you are ready.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
_QUESTION = Message(role="user", content="Call the tool named ready now, without arguments.")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result at one endpoint. ``calls_tools`` is None without a reply."""

    model: str
    endpoint: str
    ok: bool
    message: str
    calls_tools: bool | None = None
    seconds: float = 0.0


async def check_model(catalog: ModelCatalog, name: str) -> list[Check]:
    """One check for each endpoint.

    Raises:
        ModelConfigError: The model is not configured, or wrongly.
    """
    settings = catalog.settings(name)
    change = partial(
        msgspec.structs.replace,
        settings,
        endpoints=(),
        max_tries=1,
        timeout_seconds=min(_SECONDS, settings.timeout_seconds),
    )
    checks = []
    for url in settings.urls:
        model = open_remote(name, change(endpoint=url))
        try:
            reply = await model.complete([_QUESTION], [_TOOL], session="dgym-check")
        except ModelError as error:
            checks.append(Check(model=name, endpoint=url, ok=False, message=str(error)))
        else:
            checks.append(_judge(name, url, reply))
        finally:
            await model.close()
    return checks


def _judge(name: str, url: str, reply: Reply) -> Check:
    calls = any(call.tool == _TOOL["name"] and call.error is None for call in reply.calls)
    usage = reply.usage
    parts = [f"answered in {reply.seconds_model:.1f} s"]
    if calls:
        parts.append("calls tools")
    if usage.exact:
        price = f", price {usage.price}" if usage.price is not None else ""
        parts.append(f"{usage.input_tokens} tokens in, {usage.output_tokens} out{price}")
    else:
        parts.append("reports no tokens, so that counts are estimates")
    if not calls:
        parts.append("but called no tool when asked to; if that stays so, set tool_calling: text")
    return Check(
        model=name, endpoint=url, ok=True, message=", ".join(parts), calls_tools=calls, seconds=reply.seconds_model
    )
