"""Executes the calls of a recorded trajectory or of a walkthrough, in order."""

from importlib import resources
from typing import Any

import msgspec

from dgym.agents._base import AgentContext, BaseAgent, Env, find_file
from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError
from dgym.wire import EndReason, ToolCall

_PACKAGE = "package:"
_SHIPPED = "dgym.benchmarks."
_WALKTHROUGH = "walkthrough.jsonl"
_PARAMETER = "agent.parameters.trajectory"


class ReplayAgent(BaseAgent):
    """Replays the calls in ``agent.parameters.trajectory``.

    The parameter is the JSON lines themselves, the path of a file, or ``package:NAME`` for a walkthrough in a package.
    """

    name = "replay"

    async def run(self, env: Env, context: AgentContext) -> EndReason | None:
        """Reset, then execute the calls. A resumed episode continues after its recorded steps."""
        calls = read_calls(context)
        await env.reset(seed=context.seed)
        made = env.trajectory()
        if made and made[-1].observation.end_reason is not None:
            return None
        for call in calls[max(0, len(made) - 1) :]:
            _, _, terminated, truncated, _ = await env.step(call)
            if terminated or truncated:
                break
        return None


def read_calls(context: AgentContext) -> list[ToolCall]:
    """Return the calls of the parameter ``trajectory``.

    Raises:
        ManifestError: The parameter is missing, or the calls cannot be read.
    """
    reference = context.parameters.get("trajectory")
    if not isinstance(reference, str) or not reference.strip():
        raise ManifestError(
            f"agent replay needs {_PARAMETER}: a trajectory or walkthrough file, its JSON lines, or package:NAME"
        )
    if reference.lstrip().startswith("{"):
        return parse_calls(reference, source=_PARAMETER)
    if reference.startswith(_PACKAGE):
        package = reference.removeprefix(_PACKAGE)
        if context.base is None and not package.startswith(_SHIPPED):
            # Reading a file of a package imports the package. The manifest must not select code for this process.
            raise ManifestError(f"{_PARAMETER}: in a cluster package:NAME is one of {_SHIPPED}*, not {package[:200]!r}")
        return _from_package(package, context.task_name)
    path = find_file(reference, context.base)
    try:
        return parse_calls(path.read_text("utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{_PARAMETER}: cannot read {path}: {error}") from None


def parse_calls(text: str, *, source: str) -> list[ToolCall]:
    """Return the calls of a trajectory or of a walkthrough.

    A line of a trajectory is a step with a ``call``. A line of a walkthrough is ``{"tool": NAME, "arguments": {...}}``.
    An invalid last line is skipped, because a killed process may have left it incomplete.

    Raises:
        ManifestError: Another line is invalid. The message contains its number.
    """
    lines = text.split("\n")
    calls = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            call = _parse_line(msgspec.json.decode(line))
        except (*DECODE_ERRORS, TypeError) as error:
            if number == len(lines) and number > 1:
                break
            raise ManifestError(f"{source}:{number}: not a call or a step: {error}") from None
        if call is not None:
            calls.append(call)
    return calls


def _parse_line(value: Any) -> ToolCall | None:
    if not isinstance(value, dict):
        raise TypeError('expected an object such as {"tool": "eval", "arguments": {}}')
    if "schemaVersion" in value:
        return None
    if "seq" in value:
        return None if value.get("call") is None else msgspec.convert(value["call"], ToolCall)
    return msgspec.convert(value, ToolCall)


def _from_package(package: str, task: str) -> list[ToolCall]:
    """Return the calls of the walkthrough in the directory of a bundled task."""
    try:
        folder = resources.files(package)
    except (ImportError, TypeError, ValueError) as error:
        raise ManifestError(f"{_PARAMETER}: the package {package} cannot be imported: {error}") from None
    for name in dict.fromkeys((task, task.replace("-", "_"))):
        file = folder / name / _WALKTHROUGH
        if file.is_file():
            return parse_calls(file.read_text("utf-8"), source=f"package:{package}/{name}/{_WALKTHROUGH}")
    raise ManifestError(f"{_PARAMETER}: package {package} has no walkthrough for the task {task!r}")
