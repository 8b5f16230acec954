"""Says whose code a file is: that decides what stepping stops in and what a stack trace shows."""

import os

HIDDEN = 0  # the debugger itself
HARNESS = 1  # test runners and the import system: stepping passes through
LIBRARY = 2
PROGRAM = 3  # the workspace and the debugged program

_INSTALLED = ("/site-packages/", "/dist-packages/")
_HARNESS_PARTS = ("/_pytest/", "/pluggy/", "/pytest/", "/pytest_", "/xdist/")
_HARNESS_ENDS = ("/pytest.py", "/runpy.py", "/importlib/__init__.py", "/bin/pytest", "/bin/py.test")
_UNITTEST_ENDS = tuple(
    "/unittest/%s.py" % name for name in ("case", "suite", "runner", "main", "loader", "async_case", "__main__")
)


class Owners(object):
    """Classifies files, each once."""

    def __init__(self, workspace, hidden):
        self._workspace = os.path.join(workspace, "")
        self._known = dict.fromkeys(hidden, HIDDEN)

    def claim(self, filename, kind):
        """Fix the answer for one file."""
        self._known[filename] = kind

    def of(self, filename):
        """One of HIDDEN, HARNESS, LIBRARY and PROGRAM."""
        kind = self._known.get(filename)
        if kind is None:
            kind = self._known[filename] = self._classify(filename)
        return kind

    def _classify(self, filename):
        if filename.startswith("<frozen "):
            return HARNESS
        installed = any(part in filename for part in _INSTALLED)
        if not installed and not filename.startswith("<") and self._inside(filename):
            return PROGRAM
        if any(part in filename for part in _HARNESS_PARTS) or filename.endswith(_HARNESS_ENDS + _UNITTEST_ENDS):
            return HARNESS
        return LIBRARY

    def _inside(self, filename):
        return os.path.realpath(os.path.join(self._workspace, filename)).startswith(self._workspace)

    def steppable(self, frame):
        """Whether stepping may stop here: in the program, or in a library that the program called directly.

        Library code that a test runner calls is as little of interest as the test runner itself.
        """
        while frame is not None:
            kind = self.of(frame.f_code.co_filename)
            if kind != LIBRARY:
                return kind == PROGRAM
            frame = frame.f_back
        return False
