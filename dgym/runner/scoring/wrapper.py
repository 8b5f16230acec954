"""Start a task's entrypoint with a report of its outcome.

This script has only what must run first. ``stages`` has the rest: a module is loaded from its bytecode, and a script is
compiled at each start.
"""

import os
import sys

# The modules that the interpreter loads itself, so nothing else may be imported before.
_LOADED = frozenset(sys.modules)
_PACKAGE = "dgym_runner"

if __name__ == "__main__":
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    from dgym_runner.scoring import stages

    if sys.argv[1:] == ["--start"]:
        stages.start(_LOADED)
    else:
        stages.plan()
