"""Failures as a message on standard error and an exit status, and signals as Ctrl-C.

0: every episode has a verdict. 1: some failed for other reasons. 2: usage or manifest. 130: interrupted.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar

import click

from dgym.errors import DgymError, ManifestError, PluginError

FAILED = 1
USAGE = 2
INTERRUPTED = 130


class UsageFailure(click.ClickException):
    """A mistake that the user can correct: in a manifest, an override, a name."""

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


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``KeyboardInterrupt`` too, so that no sandbox outlives its terminal."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
