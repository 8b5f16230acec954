"""Where the standard library is: the debugger imports it with the workspace's files out of the way."""

import os


def library_entries(path):
    """The entries of a ``sys.path`` that hold the standard library, and nothing installed or of the workspace."""
    library = os.path.dirname(os.path.abspath(os.__file__))
    installed = ("site-packages", "dist-packages")
    return [
        entry
        for entry in path
        if entry.endswith(".zip") or (os.path.abspath(entry).startswith(library) and not entry.endswith(installed))
    ]
