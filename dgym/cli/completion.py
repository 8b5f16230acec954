"""``dgym completion``."""

import click

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
