"""What went wrong, as a message on standard error and an exit status.

0: every episode has a verdict. 1: some failed for other reasons. 2: usage or manifest. 130: interrupted.
"""

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import click

from dgym.errors import DgymError, ManifestError, PluginError

FAILED = 1
USAGE = 2
INTERRUPTED = 130


_SHOWN_CHARACTERS = 300


class UsageFailure(click.ClickException):
    """The user can put it right: a manifest, an override, a name."""

    exit_code: ClassVar[int] = USAGE


@contextlib.contextmanager
def translated(ctx: click.Context) -> Iterator[None]:
    """Turn exceptions of dgym into click's, and Ctrl-C into its exit status."""
    try:
        yield
    except (ManifestError, PluginError) as error:
        raise UsageFailure(str(error)) from error
    except DgymError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def in_one_line(message: str) -> str:
    """The first line of a failure's message, which names the failure, and the last, where programs put the cause."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    shown = [lines[0], lines[-1]] if len(lines) > 1 else lines
    joint = " … " if len(lines) > 2 else " "
    return joint.join(line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…" for line in shown)
