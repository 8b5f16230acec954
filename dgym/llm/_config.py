"""The model configuration ``llm.yaml``: its settings, secrets that cannot be printed, and how it is read."""

import os
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

import msgspec

from dgym.documents import read_yaml
from dgym.errors import ModelConfigError, describe, nearest

MASK = "*****"

_SHORTEST = 4
_KEY_LIKE = re.compile(r"\b(sk|hf|xai|gsk)[-_][A-Za-z0-9_\-*.]{5,}[A-Za-z0-9_\-*]")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=\-]{6,}")


class Secret:
    """A secret text. Only ``reveal`` returns it; ``str``, ``repr``, logs, JSON and pickles do not contain it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret, for the header of a request."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, _: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled; read the configuration again where it is needed")


def mask(text: str, secrets: Iterable[Secret] = ()) -> str:
    """Replace secrets, and everything that looks like a key, by ``*****``. Providers quote keys in their errors."""
    for secret in sorted((secret.reveal() for secret in secrets), key=len, reverse=True):
        # A text of up to three characters is not a key. Replacing it would make messages unreadable.
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return _BEARER.sub(rf"\1{MASK}", _KEY_LIKE.sub(MASK, text))


def decode_secret(kind: type, value: Any) -> Any:
    """Decode text to a ``Secret``. A ``dec_hook`` of msgspec."""
    if kind is not Secret:
        raise NotImplementedError(kind)
    if not isinstance(value, str):
        raise ValueError("Expected text; put quotes around it")
    return Secret(value)


Line = Annotated[str, msgspec.Meta(min_length=1, max_length=2048, pattern=r"^[^\r\n]*$")]
Url = Annotated[str, msgspec.Meta(max_length=2048, pattern=r"^https?://[^\s]+$", description="an http or https URL")]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Price = Annotated[float, msgspec.Meta(ge=0)] | Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?$")]

DEFAULT_TRIES = 8
OPENAI_URL = "https://api.openai.com/v1"


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one model in ``llm.yaml``.

    Attributes:
        model: The server's name of the model; on Azure the name of the deployment.
        endpoint: URL of the server, usually ending in ``/v1``. Default: OpenAI's.
        endpoints: Several URLs. An episode keeps the URL that had the fewest episodes when it started.
        api: ``chat`` for chat completions, or ``responses`` for OpenAI's Responses API.
        api_key: The key, if the server needs one.
        scope: On Azure without a key, the scope of tokens.
        api_version: On Azure with a key, the version of the API.
        tags: ``dgym llm list --tag TAG`` selects models by them.
        headers: Headers of each request to the endpoint, which are never shown.
        session_header: Header with the same value in all requests of an episode.
        context_limit: Tokens of prompt and reply together. Agents fit prompts into it, and assume 128,000 without it.
        tokenizer: Counts tokens exactly (install ``.[tokenizers]``): a name on the Hugging Face Hub (private:
            ``HF_TOKEN``), or the path of a ``tokenizer.json``. Without it agents estimate.
        tool_calling: ``native``, or ``text`` for models that cannot call tools.
        reasoning: With ``return`` the model gets its reasoning back as received. ``drop`` is for servers that refuse
            it.
        reasoning_end_token: Text such as ``</think>``, if the reply begins with the reasoning.
        cache_control: ``true`` adds marks for the prompt cache.
        system_prompt_support: ``false`` moves the system prompt into the first user message.
        ignore_kwargs: Parameters that are never sent, such as ``seed``.
        generate_kwargs: Parameters of every request, such as ``max_tokens``. The manifest's temperature and seed take
            precedence.
        timeout_seconds: Maximum duration of one request.
        max_tries: Maximum number of tries of one request.
        max_concurrency: Limit of requests at a time, of all processes of a user on this machine together.
        requests_per_minute: Limit of requests, of these processes together.
        tokens_per_minute: Limit of tokens, of these processes together.
        input_price: Price of a million input tokens, in any currency. Cost limits require prices.
        cached_input_price: Price of a million input tokens from the provider's cache. Default: ``input_price``.
        output_price: Price of a million output tokens.
    """

    model: Line
    endpoint: Url | None = None
    endpoints: tuple[Url, ...] = ()
    api: Literal["chat", "responses"] = "chat"
    api_key: Secret | None = None
    scope: Line | None = None
    api_version: Line | None = None
    tags: tuple[Line, ...] = ()
    headers: dict[str, Secret] = {}
    session_header: Line = "X-Session-Id"
    context_limit: Positive | None = None
    tokenizer: Line | None = None
    tool_calling: Literal["native", "text"] = "native"
    reasoning: Literal["return", "drop"] = "return"
    reasoning_end_token: Line | None = None
    cache_control: bool = False
    system_prompt_support: bool = True
    ignore_kwargs: tuple[Line, ...] = ()
    generate_kwargs: dict[str, Any] = {}
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    max_tries: Annotated[int, msgspec.Meta(ge=1, le=100)] = DEFAULT_TRIES
    max_concurrency: Positive | None = None
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    input_price: Price | None = None
    cached_input_price: Price | None = None
    output_price: Price | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the endpoints. Default: that of OpenAI."""
        return self.endpoints or (self.endpoint or OPENAI_URL,)

    @property
    def is_azure(self) -> bool:
        """Whether the endpoints are Azure OpenAI deployments, which need an ``api-version``."""
        return self.api_version is not None

    @property
    def reply_limit(self) -> int | None:
        """Maximum number of tokens of a reply, if ``generate_kwargs`` contains one."""
        for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
            value = self.generate_kwargs.get(key)
            if isinstance(value, int):
                return value
        return None

    @property
    def has_prices(self) -> bool:
        """Whether the cost of a reply can be computed."""
        return self.input_price is not None and self.output_price is not None

    def price(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> str | None:
        """Return the cost of the tokens as decimal text, or None if no prices are configured.

        Cached tokens cost ``cached_input_price``, or ``input_price`` if it is not set. Prices are per million tokens.
        """
        if self.input_price is None and self.output_price is None:
            return None
        per_input = _decimal(self.input_price)
        per_cached = per_input if self.cached_input_price is None else _decimal(self.cached_input_price)
        total = (input_tokens - cached_tokens) * per_input + cached_tokens * per_cached
        total += output_tokens * _decimal(self.output_price)
        return format((total / 1_000_000).normalize(), "f")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """All secrets of the settings, for ``mask``."""
        return (*(() if self.api_key is None else (self.api_key,)), *self.headers.values())

    @property
    def problems(self) -> list[str]:
        """Invalid combinations of fields, each with its remedy."""
        found = []
        if self.endpoint is not None and self.endpoints:
            found.append("has both endpoint and endpoints; keep one of them")
        if self.api_key is not None and self.scope is not None:
            found.append("has both api_key and scope; a login by scope does not need a key")
        if self.is_azure and self.endpoint is None and not self.endpoints:
            found.append("has an api_version, so it is on Azure, but no endpoint; add https://NAME.openai.azure.com")
        if self.is_azure and self.api_key is None and self.scope is None:
            found.append("is on Azure and has neither api_key nor scope; add one of them")
        if self.cached_input_price is not None and self.input_price is None:
            found.append("has a cached_input_price but no input_price; add it")
        if self.cache_control and self.api == "responses":
            found.append("has cache_control, which the Responses API does not support; remove it, or api: responses")
        if any("@" in urlsplit(url).netloc for url in self.urls):
            found.append("has a password in its endpoint, where it could be read; put it under api_key or headers")
        return found


def _decimal(price: float | str | None) -> Decimal:
    return Decimal(str(price or 0))


PATH_VARIABLE = "LLM_CONFIG_FILE_PATH"
FILE_NAME = "llm.yaml"

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the file: its settings, or the problem with them. An invalid entry does not affect other models."""

    name: str
    settings: ModelSettings | None = None
    problem: str | None = None


def default_path() -> Path:
    """Return the default path of the configuration: ``LLM_CONFIG_FILE_PATH``, else in ``user_directory``."""
    given = os.environ.get(PATH_VARIABLE)
    return Path(given).expanduser() if given else user_directory() / FILE_NAME


def user_directory() -> Path:
    """Return ``$XDG_CONFIG_HOME/dgym``. The default of ``XDG_CONFIG_HOME`` is ``~/.config``."""
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "dgym"


def read_entries(
    path: Path, environment: Mapping[str, str] | None = None, *, origin: str = ""
) -> dict[str, ModelEntry]:
    """Read all models of the file by name.

    Args:
        path: The file.
        environment: Variables for references such as ``${NAME}``. Default: those of the process.
        origin: Name of the file in messages. Default: its path.

    Raises:
        ModelConfigError: The file cannot be read, or is not a mapping of names to settings.
    """
    shown = origin or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ModelConfigError(f"{shown}: cannot be read: {why}; `dgym init-llm-config` writes a template") from None
    content = _parse(text, shown)
    variables = os.environ if environment is None else environment
    return {name: _entry(name, raw, shown, variables) for name, raw in content.items()}


def _parse(text: str, shown: str) -> dict[str, Any]:
    documents = list(read_yaml(text))
    content = documents[0].value if documents else None
    problems = [problem for document in documents for problem in document.problems]
    if len(documents) > 1 and not problems:
        raise ModelConfigError(f"{shown}: contains several documents; put all models into one document")
    if problems:
        raise ModelConfigError(describe(problems[0], shown))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ModelConfigError(f"{shown}: must map names of models to their settings; see `dgym init-llm-config`")
    for name in content:
        if not isinstance(name, str):
            raise ModelConfigError(
                f"{shown}: YAML reads the name {name!r} as a value that is not text; put it in quotes"
            )
    return content


def _entry(name: str, raw: Any, shown: str, variables: Mapping[str, str]) -> ModelEntry:
    try:
        settings = parse_settings(raw, variables)
    except ModelConfigError as error:
        return ModelEntry(name=name, problem=f"{shown}: model {name!r} {error}")
    return ModelEntry(name=name, settings=settings)


def parse_settings(raw: Any, variables: Mapping[str, str]) -> ModelSettings:
    """Return the settings of one model.

    Raises:
        ModelConfigError: The entry is invalid. The message continues a sentence that begins with the model's name. It
            does not contain values, which may be secret.
    """
    if not isinstance(raw, dict):
        raise ModelConfigError("must be a mapping of settings, such as `model: gpt-4.1`")
    _refuse_unknown(raw)
    missing: list[str] = []
    resolved = _resolve(raw, variables, missing)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise ModelConfigError(f"refers to the environment variable {names}, which is not set or empty; export it")
    try:
        settings = msgspec.convert(resolved, ModelSettings, dec_hook=decode_secret)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"is not valid: {_explain(error)}") from None
    if settings.problems:
        raise ModelConfigError("; ".join(settings.problems))
    return settings


def _refuse_unknown(raw: dict[Any, Any]) -> None:
    known = [field.name for field in msgspec.structs.fields(ModelSettings)]
    for key in raw:
        if key not in known:
            guess = nearest(str(key), known)
            hint = f"did you mean {guess}?" if guess else f"the settings are: {', '.join(known)}"
            raise ModelConfigError(f"has no setting {str(key)[:80]!r}; {hint}")


def _explain(error: msgspec.ValidationError) -> str:
    """Return the message of msgspec with the field first. It contains types and bounds, but not the value."""
    what, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{field}: {what}" if field else what


class _FromEnvironment(str):
    """Text that contains the value of an environment variable."""

    __slots__ = ()


def from_environment(text: str) -> bool:
    """Return True if a text of ``generate_kwargs`` contains the value of an environment variable."""
    return isinstance(text, _FromEnvironment)


def _resolve(value: Any, variables: Mapping[str, str], missing: list[str]) -> Any:
    """Replace ``${NAME}`` and ``${NAME:-default}`` in ``value`` at any depth. Appends unset names to ``missing``."""
    if isinstance(value, dict):
        return {key: _resolve(item, variables, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, variables, missing) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        found = variables.get(name) or default
        if found is None:
            missing.append(name)
            return ""
        return found

    resolved = _REFERENCE.sub(replace, value)
    return _FromEnvironment(resolved) if _REFERENCE.search(value) else resolved


def hub_token() -> Secret | None:
    """Return the Hugging Face token in ``HF_TOKEN``, for tokenizers that are not public."""
    found = os.environ.get("HF_TOKEN")
    return Secret(found) if found else None


def template() -> str:
    """Return the text of the configuration template."""
    return files("dgym.llm").joinpath("llm_template.yaml").read_text(encoding="utf-8")


def write_template(path: Path, *, overwrite: bool) -> bool:
    """Write the configuration template. Only its owner can read the file, because users may write keys into it.

    Returns:
        False if the file exists and ``overwrite`` is False.

    Raises:
        ModelConfigError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if overwrite:
            path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(template())
    return True
