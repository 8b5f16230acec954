"""Becomes the debugged program: the task's interpreter starts this file, and it runs the program under the debugger.

The standard library is imported with the workspace out of the way, so that a ``code.py`` or ``cmd.py`` there is not
taken for the library's.
"""

import sys

_PACKAGE = "dgym_runner"


def main():
    """Import the debugger, restore ``sys.path`` and ``sys.modules`` for the program, and run it."""
    loaded = frozenset(sys.modules)
    path = list(sys.path)
    import os

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
    sys.modules[_PACKAGE].__path__ = [root]
    from dgym_runner.shims import library_entries

    sys.path[:] = library_entries(path)
    from dgym_runner.debugger import program

    program.run(loaded, path, root)


if __name__ == "__main__":
    main()
