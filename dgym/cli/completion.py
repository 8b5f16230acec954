"""``dgym completion``, and what the shell offers where the user presses the tab key; a failure here offers nothing."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

_PROGRAM = "dgym"
_VARIABLE = "_DGYM_COMPLETE"


_HELP = """Print what makes a shell complete dgym's commands.

\b
bash: dgym completion bash > ~/.local/share/bash-completion/completions/dgym
zsh:  dgym completion zsh > ~/.zfunc/_dgym   (~/.zfunc in fpath, before compinit)
fish: dgym completion fish > ~/.config/fish/completions/dgym.fish

Commands, options, files, agents, tools, bundled benchmarks and the paths of -p are completed.
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script."""
    from click.shell_completion import get_completion_class

    from dgym.cli.app import cli

    found = get_completion_class(shell)
    assert found is not None
    # The base class's source(): bash's own would start a bash to ask for its version.
    complete = found(cli, {}, _PROGRAM, _VARIABLE)
    click.echo(complete.source_template % complete.source_vars())


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
