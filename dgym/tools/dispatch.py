"""Running one call: checks before, one kind of answer after."""

import logging
from collections.abc import Awaitable, Iterable

from dgym.errors import DgymError
from dgym.tools.base import Tool, ToolError, ToolResult
from dgym.tools.context import ToolContext
from dgym.tools.grammar import validate_arguments
from dgym.wire import ToolCall

_log = logging.getLogger(__name__)


async def use_tool(tool: Tool, context: ToolContext, call: ToolCall) -> ToolResult:
    """What the tool answers. Its failures are answers too; only dgym's own exceptions pass through."""
    try:
        answer = await tool.use(context, **validate_arguments(tool, call))
    except ToolError as error:
        return ToolResult(text=str(error), ok=False)
    except DgymError:
        raise
    except OSError as error:
        return ToolResult(text=f"{tool.name} failed: {error.strerror or error}.", ok=False)
    except Exception as error:
        _log.exception("tool %s failed", tool.name)
        return ToolResult(text=f"{tool.name} failed: {type(error).__name__}: {error}", ok=False)
    return ToolResult(text=answer) if isinstance(answer, str) else answer


async def tell_reset(tools: Iterable[Tool], context: ToolContext) -> list[str]:
    """What tools have to say when the sandbox stands."""
    return [told for tool in tools if (told := await _ask(tool, tool.on_reset(context)))]


async def tell_rewrite(tools: Iterable[Tool], context: ToolContext, path: str) -> list[str]:
    """What tools have to say about a rewritten file."""
    return [told for tool in tools if (told := await _ask(tool, tool.on_rewrite(context, path)))]


async def _ask(tool: Tool, event: Awaitable[str | None]) -> str | None:
    try:
        return await event
    except ToolError as error:
        return str(error)
    except DgymError:
        raise
    except Exception as error:
        _log.exception("an event of tool %s failed", tool.name)
        return f"{tool.name} failed: {type(error).__name__}: {error}"
