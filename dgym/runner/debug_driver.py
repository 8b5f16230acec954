"""Becomes the debugged program: the task's interpreter starts this file, and it runs the program under the debugger.

The standard library is imported with the workspace out of the way, so that a ``code.py`` or ``cmd.py`` there is not
taken for the library's.
"""

import sys


def main():
    """Import the debugger, put things back as the program expects them, and run it."""
    loaded = frozenset(sys.modules)
    path = list(sys.path)
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    from library_path import library_entries

    sys.path[:] = [here] + library_entries(path)
    import debug_program

    debug_program.run(loaded, path, here)


if __name__ == "__main__":
    main()
