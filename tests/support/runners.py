"""Start of runners for tests: from files with bytecode, as local sandboxes do, or forked from a warm process."""

import contextlib
import functools
import subprocess
from collections.abc import Callable, Iterator

from dgym.sandbox._cache import compiled_runner
from tests.support.warm_process import WarmProcess

_PROGRAM = """
import os, sys

main = {main!r}
namespace = {{"__name__": "start", "__file__": main}}
with open(main) as stream:
    exec(compile(stream.read(), main, "exec"), namespace)
sys.modules["dgym_runner"] = type(sys)("dgym_runner")
sys.modules["dgym_runner"].__path__ = [os.path.dirname(main)]
__import__("dgym_runner.server")
__import__("dgym_runner.debugger.host")


def start(connection):
    os.setsid()
    os._exit(namespace["main"](["--fd", str(connection)]))
"""


@functools.cache
def compiled_main(python: str) -> str:
    """The path of the runner's ``__main__.py`` with bytecode for this interpreter."""
    code = "import sys; print(sys.implementation.cache_tag)"
    done = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return str(compiled_runner(python, done.stdout.strip()) / "__main__.py")


@contextlib.contextmanager
def open_warm_runners() -> Iterator[Callable[[str], WarmProcess]]:
    """A function that returns the warm process of an interpreter, which forks runners. It ends with the context.

    ``fork`` gets the runner's end of a connection. Each runner is a separate process with separate state. Tests of a
    runner's start, end and memory start it from its files instead.
    """
    started: dict[str, WarmProcess] = {}
    with contextlib.ExitStack() as stack:

        def of_interpreter(python: str) -> WarmProcess:
            if python not in started:
                program = _PROGRAM.format(main=compiled_main(python))
                started[python] = stack.enter_context(WarmProcess([python, "-I", "-S", "-B"], program, {}))
            return started[python]

        yield of_interpreter
