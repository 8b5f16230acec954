"""The output of commands: JSON, tables, files, and exceptions as messages with an exit status.

Exit status: 0 no episode failed, 1 some failed, 2 usage or manifest, 130 interrupted.
"""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import click

from dgym.errors import DgymError, ManifestError, PluginError
from dgym.terminal import printable, printable_json, printable_line

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

_SHOWN_CHARACTERS = 300


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print ``text`` without terminal escapes. Commands must not print other than with the functions of this module."""
    click.echo(printable(text), err=err, nl=nl)


def echo_json(value: Any) -> None:
    """Print ``value`` as indented JSON."""
    import msgspec

    echo_document(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def echo_document(text: str) -> None:
    """Print a JSON document. Control characters become JSON escapes, so that the value does not change."""
    click.echo(printable_json(text))


def console(*, err: bool = False) -> "Console":
    """Return the console for tables. In a file or a pipe, it is ``COLUMNS`` (default 200) characters wide."""
    from rich.console import Console

    width = None if err or sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200"))
    return Console(stderr=err, width=width, highlight=False)


def show_table(drawn: "Table") -> None:
    """Print a table. Long lines are not cut: the terminal wraps them, as with kubectl."""
    screen = console()
    widen(screen, drawn)
    screen.print(drawn)


def widen(screen: "Console", drawn: "RenderableType") -> None:
    """Make the console wide enough for every cell that may not wrap, because a cut name is useless."""
    from rich.measure import Measurement

    needed = Measurement.get(screen, screen.options.update(width=10_000), drawn).minimum
    screen.width = max(screen.width, needed)


def table(headings: Iterable[str], *, numbers: Collection[str] = (), breaking: Collection[str] = ()) -> "Table":
    """Return a table without borders. Columns in ``numbers`` are right-aligned, and cells in ``breaking`` may wrap."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(
            heading,
            justify="right" if heading in numbers else "left",
            no_wrap=heading not in breaking,
            overflow="fold",
        )
    return made


def add_row(to: "Table", cells: Sequence[str], *, styled: int = -1, style: str = "") -> None:
    """Add a row. ``style`` applies to the cell with the index ``styled``."""
    to.add_row(*(text(printable_line(cell), style if index == styled else "") for index, cell in enumerate(cells)))


def text(plain: str, style: str = "") -> "Text":
    """Return text for a console, without markup and terminal escapes."""
    from rich.text import Text

    return Text(printable(plain), style=style)


def in_one_line(message: str) -> str:
    """Shorten a message to its first line, which names the failure, and its last line, which often has the cause."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    shown = [lines[0], lines[-1]] if len(lines) > 1 else lines
    joint = " … " if len(lines) > 2 else " "
    return joint.join(line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…" for line in shown)


def comment(text: str) -> str:
    """Make ``text`` printable and put it on one line, for a comment of a manifest."""
    return printable(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text))


def write_text(path: "Path", text: str, *, force: bool) -> None:
    """Write ``text`` to ``path`` atomically. An existing file is replaced only with ``force``.

    Raises:
        UsageFailure: The file exists and ``force`` is False, or it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        try:
            if force:
                temporary.replace(path)
            else:
                # A link fails if the file exists. After a separate check, another process could still create it.
                path.hardlink_to(temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise UsageFailure(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise UsageFailure(f"{path} cannot be written: {error.strerror or error}") from None


FAILED = 1
USAGE = 2
INTERRUPTED = 130


class UsageFailure(click.ClickException):
    """A mistake of the user, for example in a manifest, an override or a name. The exit status is 2."""

    exit_code: ClassVar[int] = USAGE


@contextlib.contextmanager
def translated(ctx: click.Context) -> Iterator[None]:
    """Turn exceptions of dgym into click's exceptions, and Ctrl-C into the exit status 130."""
    try:
        with printable_messages():
            yield
    except (KeyboardInterrupt, click.Abort):  # Click raises Abort for Ctrl-C at a prompt.
        ctx.exit(INTERRUPTED)


@contextlib.contextmanager
def printable_messages() -> Iterator[None]:
    """Turn exceptions of dgym into click's exceptions, and make their messages printable."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)  # click declares the attribute final
        raise
    except (ManifestError, PluginError) as error:
        raise UsageFailure(printable(str(error))) from error
    except DgymError as error:
        raise click.ClickException(printable(str(error))) from error


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise ``KeyboardInterrupt``, so that sandboxes end together with their terminal."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
