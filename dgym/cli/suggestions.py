"""What the shell offers where the user presses the tab key. Whatever fails here offers nothing."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_agents(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The agents that are installed."""
    from dgym.agents.registry import agent_names

    return _starting(agent_names(), incomplete)


def complete_tools(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The tools that are installed."""
    from dgym.tools import available_tools

    return _starting(available_tools(), incomplete)


def complete_bundled(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The benchmarks that come with dgym."""
    from dgym.benchmarks import bundled

    return _starting(bundled(), incomplete)


def complete_paths(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and directories; the shell itself knows them best."""
    return [CompletionItem(incomplete, type="file")]


def complete_directories(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Directories, likewise."""
    return [CompletionItem(incomplete, type="dir")]


def complete_overrides(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The paths that ``-p`` can set, up to the value; values of names that are known."""
    path, equals, value = incomplete.partition("=")
    if equals:
        known: dict[str, Callable[[], Iterable[str]]] = {"agent.name": _agents, "tools": _tools}
        return _starting([f"{path}={name}" for name in known.get(path, tuple)()], f"{path}={value}")
    from dgym.api import EpisodeSetSpec, EpisodeSpec
    from dgym.api.schema import known_paths, struct_type

    paths = list(known_paths(struct_type(EpisodeSpec)))
    paths += [f"set.{one}" for one in known_paths(struct_type(EpisodeSetSpec)) if not one.startswith("template")]
    return _starting([f"{one}=" for one in paths], incomplete)


def _agents() -> Iterable[str]:
    from dgym.agents.registry import agent_names

    return agent_names()


def _tools() -> Iterable[str]:
    from dgym.tools import available_tools

    return (f"[{name}]" for name in available_tools())


def _starting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
