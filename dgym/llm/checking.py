"""``dgym llm check``: one short request to each endpoint of a model."""

from functools import partial

import msgspec

from dgym.errors import ModelError
from dgym.llm.catalog import ModelCatalog, open_remote
from dgym.llm.protocol import Message, Reply

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
    told = [f"answered in {reply.seconds_model:.1f} s"]
    if calls:
        told.append("calls tools")
    if usage.exact:
        price = f", price {usage.price}" if usage.price is not None else ""
        told.append(f"{usage.input_tokens} tokens in, {usage.output_tokens} out{price}")
    else:
        told.append("reports no tokens, so that counts are estimates")
    if not calls:
        told.append("but called no tool when asked to; if that stays so, set tool_calling: text")
    return Check(
        model=name, endpoint=url, ok=True, message=", ".join(told), calls_tools=calls, seconds=reply.seconds_model
    )
