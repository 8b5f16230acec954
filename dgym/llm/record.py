"""What a result records of a model: what it was asked with, without secrets."""

import re
from collections.abc import Mapping
from typing import Any

from dgym.llm.config import ModelSettings, from_environment, mask
from dgym.llm.protocol import Model
from dgym.llm.remote import RemoteModel
from dgym.wire.provenance import ModelRecord

_CONFIDENTIAL = re.compile(r"(?i)api.?key|authori[sz]ation|credential|passw|secret|token$|headers")
"""Names of fields whose values are not recorded."""
_LEFT_OUT = "(not recorded)"
_ASKED = ("model", "messages", "tools", "input", "instructions")
_TEXT_CHARACTERS = 1_000


def describe_model(model: Model, *, seed: int | None, temperature: str | None) -> ModelRecord:
    """The record of ``model`` before its first reply."""
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
