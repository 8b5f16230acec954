"""Steps in words, for people who watch: ``dgym run -v``."""

import textwrap

import msgspec

from dgym.agents import Exchange
from dgym.wire import Step, ToolCall

_LINES = 40
_INDENT = "    "


def tell_exchange(exchange: Exchange) -> str:
    """What the model thought and said; its call is told with the step."""
    parts = [("reasoning", exchange.reasoning), ("says", exchange.text), ("refuses", exchange.refusal)]
    told = [f"{title}:\n{_block(text)}" for title, text in parts if text.strip()]
    return "\n".join(told)


def tell_step(step: Step) -> str:
    """The call, what came of it, and the score."""
    observation = step.observation
    # A call that could not be read has nothing to show: the observation says what was wrong with it.
    lines = [f"call: {tell_call(step.call)}"] if step.call is not None and step.call.tool else []
    lines += ["observation:", _block(observation.text)]
    if observation.score is not None:
        lines.append(f"score: {observation.score.score} of {observation.score.max_score}")
    return "\n".join(lines)


def tell_call(call: ToolCall) -> str:
    """``pdb command="b calc.py:3"``, long arguments below."""
    shown, below = [], []
    for name, value in call.arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace")
        if "\n" in text.strip("\n") or len(text) > 100:
            below.append(f"\n{_INDENT}{name}:\n{textwrap.indent(text.rstrip(chr(10)), _INDENT * 2)}")
        else:
            shown.append(f"{name}={text.rstrip(chr(10))!r}" if isinstance(value, str) else f"{name}={text}")
    return " ".join([call.tool, *shown]) + "".join(below)


def _block(text: str) -> str:
    """``text`` indented, its middle left out where it is long."""
    lines = text.strip("\n").splitlines()
    if len(lines) > _LINES:
        half = _LINES // 2
        lines = [*lines[:half], f"[… {len(lines) - 2 * half} lines …]", *lines[-half:]]
    return textwrap.indent("\n".join(lines), _INDENT)
