"""The settings of a model in ``llm.yaml``."""

from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from dgym.llm.secrets import Secret

Line = Annotated[str, msgspec.Meta(min_length=1, max_length=2048, pattern=r"^[^\r\n]*$")]
Url = Annotated[str, msgspec.Meta(max_length=2048, pattern=r"^https?://[^\s]+$", description="an http or https URL")]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Price = Annotated[float, msgspec.Meta(ge=0)] | Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?$")]

DEFAULT_TRIES = 8
OPENAI_URL = "https://api.openai.com/v1"


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the configuration; docs/models.md describes every field."""

    model: Line
    endpoint: Url | None = None
    endpoints: tuple[Url, ...] = ()
    api_key: Secret | None = None
    scope: Line | None = None
    api_version: Line | None = None
    tags: tuple[Line, ...] = ()
    headers: dict[str, Secret] = {}
    session_header: Line = "X-Session-Id"
    context_limit: Positive | None = None
    tokenizer: Line | None = None
    tool_calling: Literal["native", "text"] = "native"
    reasoning_end_token: Line | None = None
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
        """The endpoints' URLs; by default OpenAI's own."""
        return self.endpoints or (self.endpoint or OPENAI_URL,)

    @property
    def is_azure(self) -> bool:
        """Whether addresses are those of Azure's deployments, which need an ``api-version``."""
        return self.api_version is not None

    @property
    def reply_limit(self) -> int | None:
        """The longest reply that ``generate_kwargs`` asks for."""
        for key in ("max_completion_tokens", "max_tokens"):
            value = self.generate_kwargs.get(key)
            if isinstance(value, int):
                return value
        return None

    def price(self, input_tokens: int, output_tokens: int, cached_tokens: int) -> str | None:
        """What that many tokens cost; cached ones at their own price where one is given. None without prices."""
        if self.input_price is None and self.output_price is None:
            return None
        per_input = _decimal(self.input_price)
        per_cached = per_input if self.cached_input_price is None else _decimal(self.cached_input_price)
        total = (input_tokens - cached_tokens) * per_input + cached_tokens * per_cached
        total += output_tokens * _decimal(self.output_price)
        return format((total / 1_000_000).normalize(), "f")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Every secret of the settings, for masking."""
        return (*(() if self.api_key is None else (self.api_key,)), *self.headers.values())

    @property
    def problems(self) -> list[str]:
        """Faults between fields that are each valid, with their remedies."""
        found = []
        if self.endpoint is not None and self.endpoints:
            found.append("has both endpoint and endpoints; keep one of them")
        if self.api_key is not None and self.scope is not None:
            found.append("has both api_key and scope; a login by scope needs no key")
        if self.is_azure and self.endpoint is None and not self.endpoints:
            found.append("has an api_version, so it is on Azure, but no endpoint; add https://NAME.openai.azure.com")
        if self.is_azure and self.api_key is None and self.scope is None:
            found.append("is on Azure and has neither api_key nor scope; add one of them")
        if self.cached_input_price is not None and self.input_price is None:
            found.append("has a cached_input_price but no input_price; add it")
        if any("@" in urlsplit(url).netloc for url in self.urls):
            found.append("has a password in its endpoint, where it could be seen; put it under api_key or headers")
        return found


def _decimal(price: float | str | None) -> Decimal:
    return Decimal(str(price or 0))
