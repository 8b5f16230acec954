"""Tell what comes from a file that the agent changed.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import os
import sys
import time
import types
from functools import partial


def function_of(value):
    """The Python function in a function, method, property or partial; None where there is none."""
    for _ in range(10):
        if isinstance(value, (classmethod, staticmethod, types.MethodType)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, partial):
            value = value.func
        else:
            break
    return value if isinstance(value, types.FunctionType) else None


def code_of(value):
    return getattr(function_of(value), "__code__", None)


CLOCK_SECONDS = 0.02


class Trust(object):
    """``changed`` are the absolute paths whose code is not trusted.

    Neither is code that stands in no file, nor in one that was written since: changed code may write more code.
    """

    def __init__(self, changed):
        self.changed = frozenset(os.path.realpath(path) for path in changed)
        self._library = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
        self._files = {}
        self._started = time.time() - CLOCK_SECONDS

    def changed_file(self, name):
        """Whether the agent changed the file ``name``, or it was written while the tests run."""
        if name not in self._files:
            self._files[name] = os.path.realpath(name) in self.changed or self._written_since(name)
        return self._files[name]

    def _written_since(self, name):
        try:
            return os.stat(name).st_ctime > self._started
        except OSError:
            return False

    def distrusts_code(self, code):
        return code is not None and (code.co_filename.startswith("<") or self.changed_file(code.co_filename))

    def distrusts_module(self, module):
        return self.changed_file(getattr(module, "__file__", None) or "<none>")

    def distrusts_class(self, cls):
        """Whether a class was made by changed code: its module is changed, or one of its functions is from there."""
        if self.stands_in_changed_module(cls):
            return True
        return any(self._is_changed(code_of(member)) for member in list(vars(cls).values()))

    def stands_in_changed_module(self, cls):
        name = cls.__module__
        return isinstance(name, str) and self.distrusts_module(sys.modules.get(name))

    def distrusts(self, value):
        """Whether a function, class, module, or an object of a class, comes from a changed file."""
        code = code_of(value)
        if code is not None:
            return self._is_changed(code)
        if isinstance(value, type):
            return self.distrusts_class(value)
        if isinstance(value, types.ModuleType):
            return self.distrusts_module(value) or self.distrusts_class(type(value))
        return self.distrusts_class(type(value))

    def is_harmless(self, value):
        """Plugins and helpers that nobody changed may patch; what has no code or comes from the library may not."""
        code = code_of(value)
        if code is None or self.distrusts_code(code):
            return False
        path = os.path.realpath(code.co_filename)
        return not path.startswith(self._library) or (os.sep + "site-packages" + os.sep) in path

    def _is_changed(self, code):
        return code is not None and self.changed_file(code.co_filename)
