"""Command ``dgym`` in the process of the tests. Modules are imported once, worker processes are forked from a server.

Tests of signals, terminals and exits start ``DGYM`` instead.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from dgym.cli.app import cli

DGYM = Path(sys.executable).parent / "dgym"
_PRELOADED = ["dgym.episodes._local", "dgym.llm._openai_client"]
_FORKING = ("run", "benchmark")
_server = forkserver._forkserver  # type: ignore[attr-defined]
_server_environment: dict[str, str] = {}


class Done(NamedTuple):
    """The fields of ``subprocess.CompletedProcess`` that tests read."""

    returncode: int
    stdout: str
    stderr: str


def dgym(*arguments: object, cwd: Path, stdin: str = "", environment: Mapping[str, str] | None = None) -> Done:
    """Run ``dgym ARGUMENTS`` in a directory, with this process's environment or ``environment``.

    Raises:
        Exception: Any exception for which the command does not print a message. A process would print a traceback.
    """
    with _process_state(cwd, environment):
        if arguments[0] in _FORKING:
            _start_server()
        result = CliRunner().invoke(cli, list(map(str, arguments)), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


@contextlib.contextmanager
def _process_state(cwd: Path, environment: Mapping[str, str] | None) -> Iterator[None]:
    """Set the working directory and environment, and restore them, the search path and the modules at the end."""
    path, modules, variables, before = list(sys.path), set(sys.modules), dict(os.environ), Path.cwd()
    try:
        os.chdir(cwd)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        yield
    finally:
        os.chdir(before)
        if environment is not None:
            os.environ.clear()
            os.environ.update(variables)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{cwd}{os.sep}"):
                del sys.modules[name]


def _start_server() -> None:
    """Start the server that forks worker processes, unless it runs with this environment, which they inherit."""
    global _server_environment
    environment = _environment()
    if environment == _server_environment:
        return
    _server._stop()
    _server_environment = environment
    if environment == _OWN_ENVIRONMENT:
        _server.set_forkserver_preload(_PRELOADED)
        _server.ensure_running()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


_OWN_ENVIRONMENT = _environment()
