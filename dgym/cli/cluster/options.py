"""Options of the commands that talk to a cluster, and how such a command is run."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

T = TypeVar("T")

context_option = click.option(
    "--context", metavar="NAME", help="The context of the kubeconfig. [default: its current one]"
)
namespace_option = click.option(
    "-n", "--namespace", metavar="NAME", help="The namespace. [default: the context's, else default]"
)
system_namespace_option = click.option(
    "--system-namespace",
    metavar="NAME",
    default="dgym-system",
    show_default=True,
    help="The namespace in which dgym is installed.",
)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; of several things that go wrong together the first is told."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
