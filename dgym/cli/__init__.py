"""The command ``dgym``. The module of each command is imported only when the command runs."""


def main() -> None:
    """Run the command line. If click is not installed, print which extra to install and exit with status 2."""
    try:
        from dgym.cli.app import cli
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        import sys

        sys.stderr.write("Error: the command line needs more packages; install them with: pip install 'dgym[cli]'\n")
        sys.exit(2)
    cli()
