"""Models that are accessed by HTTP, with limits, endpoints, retries, duration and price.

Also the configured models by name, and ``dgym llm check``: one short request to each endpoint of a model.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dgym.errors import (
    ContentFiltered,
    ContextLengthExceeded,
    ModelConfigError,
    ModelError,
    ModelMisconfigured,
    ModelUnavailable,
    nearest,
)
from dgym.llm import _completions, _responses
from dgym.llm._config import (
    DEFAULT_TRIES,
    ModelEntry,
    ModelSettings,
    Secret,
    default_path,
    from_environment,
    hub_token,
    mask,
    read_entries,
)
from dgym.llm._faults import REMEDIES, TREATMENTS, Fault, FaultRetries, RequestFailed, Retrying
from dgym.llm._limits import ModelLimits, TokenCounter, load_tokenizer
from dgym.llm._protocol import Message, Model, Reply, TokenUsage, ToolDefinition, Waiting
from dgym.wire.outcome import ModelRecord

if TYPE_CHECKING:
    from dgym.llm._openai_client import OpenAIConnection

_CONFIDENTIAL = re.compile(r"(?i)api.?key|authori[sz]ation|credential|passw|secret|token$|headers")
"""Matches the names of fields whose values are not recorded."""
_LEFT_OUT = "(not recorded)"
_ASKED = ("model", "messages", "tools", "input", "instructions")
_TEXT_CHARACTERS = 1_000
_LOG = logging.getLogger("dgym.llm")
_TRIES_BEFORE_MOVING = 3
_ERRORS: Mapping[Fault, type[ModelError]] = {
    Fault.FILTERED: ContentFiltered,
    **dict.fromkeys(
        (Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.CONNECTION, Fault.TIMEOUT, Fault.NO_QUOTA), ModelUnavailable
    ),
    **dict.fromkeys((Fault.UNAUTHORIZED, Fault.FORBIDDEN, Fault.NOT_FOUND, Fault.REJECTED), ModelMisconfigured),
}
"""The exception for each fault. Faults that are not listed raise ``ModelError``."""
NOTICED_SECONDS = 15.0
"""A request that waits longer than this reports the reason."""
HUMAN = "human"
OpenHuman = Callable[[], Model]


class RemoteModel:
    """A ``dgym.llm.Model`` that sends requests to its endpoints. It must be used in only one event loop."""

    interactive = False

    def __init__(
        self,
        name: str,
        settings: ModelSettings,
        connect: Callable[[str], "OpenAIConnection"],
        *,
        counter: TokenCounter | None = None,
        retrying: Retrying | None = None,
        noticed_seconds: float = NOTICED_SECONDS,
    ) -> None:
        self.name = name
        self.settings = settings
        self.failures: Counter[Fault] = Counter()
        """Number of failed requests by fault, including those that were repeated."""
        self._connect = connect
        self._connections: dict[str, OpenAIConnection] = {}
        self._endpoints = Endpoints(settings.urls)
        self._counter = counter or TokenCounter()
        self._limits = limits_of(settings)
        self._retrying = retrying or Retrying(max_tries=settings.max_tries, treatments=treatments_of(settings))
        self._noticed_seconds = noticed_seconds
        self._learned_limit: int | None = None
        self._last_output = 0

    @property
    def context_limit(self) -> int | None:
        """The configured limit, or the limit that the provider reported when it was exceeded."""
        return self.settings.context_limit or self._learned_limit

    @property
    def reply_limit(self) -> int | None:
        """See ``ModelSettings.reply_limit``."""
        return self.settings.reply_limit

    @property
    def tool_calling(self) -> Literal["native", "text"]:
        """The configured value."""
        return self.settings.tool_calling

    def count_tokens(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """See ``Model.count_tokens``."""
        return self._counter.count(messages, tools)

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        session: str,
        seed: int | None = None,
        temperature: str | None = None,
        waiting: Waiting = lambda _: None,
    ) -> Reply:
        """See ``Model.complete``."""
        body = self.body(messages, tools, seed=seed, temperature=temperature)
        expected = self._counter.count(messages, tools)
        started = time.monotonic()
        wait = _Wait(waiting, self._noticed_seconds)
        try:
            (reply, reported), tries = await self._retrying.run(
                partial(self._try_once, body, tools, session, expected, wait),
                partial(self._before_retry, session, wait),
            )
        except RequestFailed as failure:
            raise self._error(failure) from None
        finally:
            wait.end()
        if reported is not None:
            self._counter.calibrate(messages, tools, reported.input_tokens)
        return msgspec.structs.replace(
            reply,
            usage=reported or self._estimate(expected, reply),
            tries=tries,
            seconds_queue=round(max(0.0, time.monotonic() - started - reply.seconds_model), 6),
        )

    @property
    def _uses_responses(self) -> bool:
        return self.settings.api == "responses"

    def body(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        seed: int | None,
        temperature: str | None,
    ) -> dict[str, Any]:
        """Return the body of a request."""
        if self._uses_responses:
            return _responses.request_body(self.settings, messages, tools, temperature=temperature)
        return _completions.request_body(self.settings, messages, tools, seed=seed, temperature=temperature)

    async def _try_once(
        self,
        body: Mapping[str, Any],
        tools: Sequence[ToolDefinition],
        session: str,
        expected: int,
        wait: "_Wait",
    ) -> tuple[Reply, TokenUsage | None]:
        """Send one request to the session's endpoint, as soon as the limits allow it."""
        async with contextlib.AsyncExitStack() as stack:
            with wait.announcing_delay(
                f"{self.settings.max_concurrency} requests are already in flight (max_concurrency)"
            ):
                await stack.enter_async_context(self._limits.place())
            reserved = expected + self._last_output
            of_limit = "its limit of requests or tokens per minute is reached"
            await self._limits.admit(reserved, before_wait=partial(wait.begin, of_limit))
            headers = {self.settings.session_header: session}
            connection = self._connection(self._endpoints.choose(session))
            started = time.monotonic()
            wait.tries += 1
            try:
                with wait.announcing_delay(
                    f"no answer yet, try {wait.tries}, timeout_seconds {self.settings.timeout_seconds:g}"
                ):
                    answer = await connection.send(body, headers)
                read_reply = _responses.read_reply if self._uses_responses else _completions.read_reply
                reply, reported = read_reply(answer, self.settings, tools)
            except RequestFailed as failure:
                self.failures[failure.fault] += 1
                raise
            seconds = time.monotonic() - started
        if reported is not None:
            self._limits.correct(reserved, reported.total_tokens)
            self._last_output = reported.output_tokens
        return msgspec.structs.replace(reply, seconds_model=round(seconds, 6)), reported

    def _before_retry(self, session: str, wait: "_Wait", failure: RequestFailed, seconds: float) -> None:
        why = mask(failure.message, self.settings.secrets)
        _LOG.info("model %s: %s (%s), try %d; again in %.1f s", self.name, failure.fault, why, failure.tries, seconds)
        wait.begin(f"{failure.fault}, try {failure.tries}", seconds)
        if failure.fault is Fault.CONNECTION and failure.tries == _TRIES_BEFORE_MOVING:
            self._endpoints.leave(session)

    def release(self, session: str) -> None:
        """See ``Model.release``."""
        self._endpoints.release(session)

    async def close(self) -> None:
        """Close the connections to all endpoints."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()

    def _connection(self, url: str) -> "OpenAIConnection":
        if url not in self._connections:
            self._connections[url] = self._connect(url)
        return self._connections[url]

    def _estimate(self, expected: int, reply: Reply) -> TokenUsage:
        generated = "".join(
            [reply.reasoning, reply.content or reply.text, *(call.tool + call.raw for call in reply.calls)]
        )
        made = self._counter.count_reply(generated)
        return TokenUsage(
            input_tokens=expected,
            output_tokens=made,
            price=self.settings.price(expected, made, 0),
            exact=False,
        )

    def _error(self, failure: RequestFailed) -> ModelError:
        why = mask(failure.message, self.settings.secrets)
        tried = f" after {failure.tries} tries" if failure.tries > 1 else ""
        text = f"model {self.name}: {failure.fault}{tried}: {why}; {REMEDIES[failure.fault]}"
        if failure.fault is Fault.TOO_LONG:
            self._learned_limit = failure.limit or self._learned_limit
            return ContextLengthExceeded(text, limit=failure.limit)
        return _ERRORS.get(failure.fault, ModelError)(text)


class _Wait:
    """Reports the reason for which a request waits, if the wait is long."""

    def __init__(self, report: Waiting, noticed_seconds: float) -> None:
        self.tries = 0
        self._report = report
        self._noticed = noticed_seconds
        self._began = time.monotonic()
        self._reported = False

    def begin(self, cause: str, seconds: float) -> None:
        """Report the reason if the request will have waited too long after ``seconds`` more."""
        if time.monotonic() - self._began + seconds >= self._noticed:
            self._notice(f"{cause}, again in {seconds:.0f} s")

    @contextlib.contextmanager
    def announcing_delay(self, cause: str) -> Iterator[None]:
        """Report the reason if the context takes too long."""
        timer = asyncio.get_running_loop().call_later(self._noticed, self._notice, cause)
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """Report the end of the wait, if its reason was reported."""
        if self._reported:
            self._report("")

    def _notice(self, cause: str) -> None:
        self._reported = True
        self._report(f"waiting for the model: {cause}")


def limits_of(settings: ModelSettings) -> ModelLimits:
    """Return the limits of a model. All processes that use the same model name, endpoints and key share them."""
    key = settings.api_key.reveal() if settings.api_key else settings.scope or ""
    return ModelLimits(
        "\n".join([settings.model, key, *settings.urls]),
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        max_concurrency=settings.max_concurrency,
    )


def treatments_of(settings: ModelSettings) -> Mapping[Fault, FaultRetries]:
    """Return the treatments with the changes that the settings require.

    If ``max_tries`` exceeds its default, it applies to temporary faults. With a login by token, an unauthorized request
    is repeated once with a new token.
    """
    changed = dict(TREATMENTS)
    if settings.max_tries > DEFAULT_TRIES:
        for fault in (Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.CONNECTION):
            changed[fault] = msgspec.structs.replace(changed[fault], tries=settings.max_tries)
    if settings.scope is not None:
        changed[Fault.UNAUTHORIZED] = FaultRetries(tries=2)
    return changed


_REMEMBERED = 10_000
"""Maximum number of sessions. The least recently used session is released, for callers that never release sessions."""

_AVOIDED_SECONDS = 60.0


class Endpoints:
    """Assigns each episode to an endpoint of the model."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._chosen: OrderedDict[str, str] = OrderedDict()
        self._loads = Counter(dict.fromkeys(self._urls, 0))
        self._avoided_until: dict[str, float] = {}

    def choose(self, session: str) -> str:
        """Return the endpoint of the episode. A new episode is assigned to the endpoint with the fewest episodes."""
        if session in self._chosen:
            self._chosen.move_to_end(session)
        else:
            self._put(session, self._urls)
            if len(self._chosen) > _REMEMBERED:
                self.release(next(iter(self._chosen)))
        return self._chosen[session]

    def leave(self, session: str) -> None:
        """Assign the episode to another endpoint, because its endpoint does not respond.

        New episodes avoid the old endpoint for a minute.
        """
        broken = self._chosen.get(session)
        others = [url for url in self._urls if url != broken]
        if broken is not None and others:
            self._avoided_until[broken] = time.monotonic() + _AVOIDED_SECONDS
            self.release(session)
            self._put(session, others)

    def release(self, session: str) -> None:
        """Remove an episode that has ended."""
        url = self._chosen.pop(session, None)
        if url is not None:
            self._loads[url] -= 1

    def loads(self) -> dict[str, int]:
        """Return the number of episodes per endpoint."""
        return dict(self._loads)

    def _put(self, session: str, urls: Sequence[str]) -> None:
        """Assign the session to the endpoint with the fewest episodes. Endpoints to be avoided come last.

        Ties are broken by a hash of the session. Otherwise all processes, which do not share their counts, would prefer
        the first endpoint.
        """
        now = time.monotonic()

        def order(url: str) -> tuple[bool, int, bytes]:
            avoided = self._avoided_until.get(url, now) > now
            return avoided, self._loads[url], hashlib.sha256(f"{session} {url}".encode()).digest()

        url = min(urls, key=order)
        self._chosen[session] = url
        self._loads[url] += 1


def describe_model(model: Model, *, seed: int | None, temperature: str | None) -> ModelRecord:
    """Return the record of ``model`` for the results. It does not contain secrets."""
    if not isinstance(model, RemoteModel):
        return ModelRecord(requested=model.name)
    settings = model.settings
    body = model.body((), (), seed=seed, temperature=temperature)
    prices = {
        "input": settings.input_price,
        "cachedInput": settings.cached_input_price,
        "output": settings.output_price,
    }
    return ModelRecord(
        requested=_without_secrets(settings.model, settings),
        sampling=_without_secrets({name: value for name, value in body.items() if name not in _ASKED}, settings),
        prices={name: str(price) for name, price in prices.items() if price is not None},
    )


def _without_secrets(value: Any, settings: ModelSettings) -> Any:
    if isinstance(value, Mapping):
        return {
            str(name): _LEFT_OUT if _CONFIDENTIAL.search(str(name)) else _without_secrets(item, settings)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(item, settings) for item in value]
    if isinstance(value, str):
        return _LEFT_OUT if from_environment(value) else mask(value, settings.secrets)[:_TEXT_CHARACTERS]
    return value


def load_models(path: str | Path | None = None, *, human: OpenHuman | None = None, origin: str = "") -> "ModelCatalog":
    """Read the model configuration.

    Args:
        path: The configuration file, which must exist. Default: ``LLM_CONFIG_FILE_PATH``, else
            ``~/.config/dgym/llm.yaml``. The default file may be missing.
        human: Creates the model ``human``, such as ``dgym.agents.HumanModel``. None: it cannot be opened.
        origin: Name of the file in messages, such as a value of the chart. Default: its path.

    Raises:
        ModelConfigError: The file is missing or unreadable. Errors in the entry of one model are raised when that
            model is opened.
    """
    given = Path(path).expanduser() if path is not None else default_path()
    if path is None and not given.exists():
        return ModelCatalog({}, path=given, human=human, origin=origin)
    return ModelCatalog(read_entries(given, origin=origin), path=given, human=human, origin=origin)


class ModelCatalog:
    """The configured models by name. A model is opened once. Its episodes share connections, limits and endpoints."""

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
        """The names of all models, always including ``human``."""
        return (*self.entries, *(() if HUMAN in self.entries else (HUMAN,)))

    def is_interactive(self, name: str) -> bool:
        """Return True for the model ``human``, whose replies are typed by a person."""
        return name == HUMAN and HUMAN not in self.entries

    def settings(self, name: str) -> ModelSettings:
        """Return the settings of a configured model.

        Raises:
            ModelConfigError: The model does not exist, or its entry is invalid.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ModelConfigError(self._unknown(name))
        if entry.settings is None:
            raise ModelConfigError(entry.problem or f"{self._origin or self.path}: model {name!r} cannot be used")
        return entry.settings

    def open(self, name: str) -> Model:
        """Return the model with this name. The first call loads its tokenizer, if one is configured.

        Raises:
            ModelConfigError: The model does not exist, its entry is invalid, or a required package is missing.
        """
        if name not in self._open:
            person = self.is_interactive(name)
            self._open[name] = self._human() if person else open_remote(name, self.settings(name))
        return self._open[name]

    def failures(self) -> Iterator[tuple[str, str, int]]:
        """Yield model name, fault and number of failed requests for each open model."""
        for name, model in self._open.items():
            if isinstance(model, RemoteModel):
                yield from ((name, fault.value, count) for fault, count in model.failures.items())

    async def close(self) -> None:
        """Close all open models."""
        while self._open:
            _, model = self._open.popitem()
            await model.close()

    def _human(self) -> Model:
        if self._open_human is None:
            raise ModelConfigError(f"the model {HUMAN!r} needs a terminal; run it with `dgym run`")
        return self._open_human()

    def _unknown(self, name: str) -> str:
        if self._origin and not self.entries:
            return f"unknown model {name!r}: {self._origin} does not name a model; set it and upgrade the release"
        if not self.path.exists():
            return f"unknown model {name!r}: {self.path} does not exist; `dgym init-llm-config` writes a template"
        guess = nearest(name, self.names)
        hint = f"did you mean {guess!r}?" if guess else f"the configured models are: {', '.join(self.names)}"
        return f"{self._origin or self.path}: unknown model {name!r}; {hint}"


def open_remote(name: str, settings: ModelSettings, *, capture: Callable[[bytes], None] | None = None) -> RemoteModel:
    """Return a new model with these settings.

    Args:
        name: Name of the model in messages.
        settings: The settings.
        capture: If given, it is called with the body of each request, and the request is not sent.

    Raises:
        ModelConfigError: A required package is missing, or the tokenizer cannot be loaded.
    """
    try:
        from dgym.llm._openai_client import OpenAIConnection
    except ModuleNotFoundError as error:
        raise ModelConfigError(
            f"model {name!r} needs the package {error.name}; install it with: pip install 'dgym[agent]'"
        ) from None
    get_token = None
    if settings.scope is not None:
        from dgym.llm._openai_client import token_source

        get_token = token_source(settings.scope)
    count = {} if settings.tokenizer is None else {"count_text": load_tokenizer(settings.tokenizer, hub_token())}
    connect = partial(OpenAIConnection, settings, get_token=get_token, capture=capture)
    return RemoteModel(name, settings, connect, counter=TokenCounter(**count))


def capturing_model(name: str, settings: ModelSettings, keep: Callable[[bytes], None]) -> RemoteModel:
    """Return a model that does not send its requests. It calls ``keep`` with the body and raises ModelMisconfigured.

    Raises:
        ModelConfigError: See ``open_remote``.
    """
    changed = msgspec.structs.replace(settings, api_key=Secret("none"), scope=None, headers={})
    return open_remote(name, changed, capture=keep)


_SECONDS = 120.0

_TOOL = {
    "name": "ready",
    "description": "Say that you are ready.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}

_QUESTION = Message(role="user", content="Call the tool named ready now, without arguments.")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the check of one endpoint.

    Attributes:
        model: Name of the model.
        endpoint: URL of the endpoint.
        ok: Whether the endpoint replied.
        message: Description of the reply or of the error.
        calls_tools: Whether the reply called the tool as requested. None without a reply.
        seconds: Duration of the request.
    """

    model: str
    endpoint: str
    ok: bool
    message: str
    calls_tools: bool | None = None
    seconds: float = 0.0


async def check_model(catalog: ModelCatalog, name: str) -> list[Check]:
    """Send one short request to each endpoint of a model.

    Raises:
        ModelConfigError: The model is not configured, or its entry is invalid.
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
            checks.append(_check_reply(name, url, reply))
        finally:
            await model.close()
    return checks


def _check_reply(name: str, url: str, reply: Reply) -> Check:
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
        parts.append("but did not call a tool when requested; if this happens again, set tool_calling: text")
    return Check(
        model=name, endpoint=url, ok=True, message=", ".join(parts), calls_tools=calls, seconds=reply.seconds_model
    )
