"""The command ``dgym``: options and help of its commands, and their implementations, imported when a command runs."""


def main() -> None:
    """Entry point; where dependencies of the command line are missing, its message names the extra to install."""
    try:
        from dgym.cli.app import cli
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        import sys

        sys.stderr.write("Error: the command line needs more packages; install them with: pip install 'dgym[cli]'\n")
        sys.exit(2)
    cli()
