"""Finds agents: by the name of an entry point, or by a dotted path ``package.module:Class``."""

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from dgym.agents.base import Agent
from dgym.errors import PluginError
from dgym.tools import import_dotted

GROUP = "dgym.agents"


def agent_names() -> list[str]:
    """Every agent installed, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_agent(name: str) -> type[Agent]:
    """The agent's class.

    Raises:
        PluginError: No such agent, or it cannot be imported, or it is no agent; the message names it.
    """
    target = name if ":" in name else _entry_point(name).value
    try:
        found = import_dotted(target)
    except Exception as error:
        raise PluginError(f"agent {name!r} cannot be loaded from {target}: {type(error).__name__}: {error}") from error
    return _checked(name, found)


def _entry_point(name: str) -> EntryPoint:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name in found:
        return found[name]
    nearest = difflib.get_close_matches(name, found, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    known = ", ".join(sorted(found)) or "none"
    raise PluginError(
        f"there is no agent {name!r}{hint} (installed: {known}; a class of your own: package.module:Class)"
    )


def _checked(name: str, found: Any) -> type[Agent]:
    needed = ("name", "default_tools", "banned_tools", "interactive", "needs_solution", "uses_model", "run")
    missing = [attribute for attribute in needed if not hasattr(found, attribute)]
    if not isinstance(found, type) or missing:
        what = f"it has no {', '.join(missing)}" if missing else "it is not a class"
        raise PluginError(f"agent {name!r} is not an agent: {what}; derive it from dgym.agents.BaseAgent")
    return cast("type[Agent]", found)
