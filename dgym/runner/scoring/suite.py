"""Watch the tests: those that run are those that were collected, under the names that their files give them.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import ast
import builtins
import os
import sys
import time
import types

from .trust import code_of, function_of

READING_SECONDS = 5.0
_BOUND = (types.FunctionType, types.ModuleType, type)


class Suite(object):
    """The collected tests with their modules, classes and fixtures, as they were before the first test ran."""

    def __init__(self, trust):
        self._trust = trust
        self._items = {}
        self._owners = {}
        self._fixtures = {}

    def snapshot(self, session):
        """Keep everything as it is; returns the signs of tampering so far."""
        found = []
        sources = Sources(self._trust)
        for item in session.items:
            function = _function(item)
            code = code_of(function)
            self._items[id(item)] = (item, item.nodeid, function, code)
            for fixture in _fixtures(item):
                self._fixtures[id(fixture)] = (fixture.func, code_of(fixture.func))
            for owner in _owners(item):
                if id(owner) not in self._owners:
                    self._owners[id(owner)] = (owner, Bindings(owner))
                    found += self._misplaced(owner)
            if sources.rewritten(item):
                found.append("changed code rewrote the file of the test %s" % item.nodeid)
            elif code is not None and sources.contradict(item, code):
                found.append("changed code replaced the test %s" % item.nodeid)
        return found

    def check(self, item):
        """Signs of tampering with ``item``, its module, its classes and its fixtures."""
        known = self._items.get(id(item))
        if known is None or known[1] != item.nodeid:
            return ["a test ran that was not collected under its name (%s)" % item.nodeid]
        found = []
        _, nodeid, function, code = known
        current = _function(item)
        if (current is not function or code_of(current) is not code) and self._is_foreign(current, code):
            found.append("changed code replaced the test %s" % nodeid)
        for name, value in list(vars(item).items()):
            if hasattr(type(item), name) and callable(value) and name != "_obj" and self._trust.distrusts(value):
                found.append("changed code replaced %s of the test %s" % (name, nodeid))
        for owner in _owners(item):
            if id(owner) in self._owners:
                found += self._rebound(owner, self._owners[id(owner)][1])
        for fixture in _fixtures(item):
            made_by, code = self._fixtures.get(id(fixture), (None, None))
            if (fixture.func is not made_by or code_of(made_by) is not code) and self._is_foreign(fixture.func, code):
                found.append("changed code replaced the fixture %s" % fixture.argname)
        return found

    def _is_foreign(self, value, code):
        current = code_of(value)
        return self._trust.distrusts(value) or (current is not code and self._trust.distrusts_code(current))

    def _misplaced(self, owner):
        """Signs that the name of a test framework is bound to another object."""
        for name in ("pytest", "unittest"):
            value = vars(owner).get(name) if isinstance(owner, types.ModuleType) else None
            if value is not None and value is not sys.modules.get(name) and self._trust.distrusts(value):
                yield "changed code replaced %s.%s" % (owner.__name__, name)

    def _rebound(self, owner, bindings):
        namespace = vars(owner)
        found = []
        for name, (value, function, code) in bindings.known.items():
            current = namespace.get(name, value)
            if current is value and (function is None or function.__code__ is code):
                continue
            if isinstance(current, types.ModuleType) and current.__name__ == getattr(value, "__name__", None):
                wrong = self._trust.distrusts_class(type(current))
            else:
                wrong = self._is_foreign(current, code)
            if wrong:
                found.append("changed code replaced %s.%s" % (owner.__name__, name))
        if len(namespace) != bindings.size:
            for name in set(namespace).difference(bindings.names):
                if self._shadows(owner, name, namespace[name]):
                    found.append("changed code replaced %s.%s" % (owner.__name__, name))
        return found

    def _shadows(self, owner, name, value):
        """Whether a new name takes the place of a builtin, or of a method that the class inherits."""
        if isinstance(owner, type):
            inherited = any(name in vars(base) for base in owner.__mro__[1:])
            return inherited and (callable(value) or hasattr(type(value), "__get__")) and self._trust.distrusts(value)
        return hasattr(builtins, name) and not name.startswith("__") and isinstance(value, _BOUND)


class Sources(object):
    """The files of the tests; reading them is bounded in time."""

    def __init__(self, trust):
        self._trust = trust
        self._files = {}
        self._until = time.monotonic() + READING_SECONDS

    def rewritten(self, item):
        path = _path(item)
        return path not in self._trust.changed and self._trust.changed_file(path)

    def contradict(self, item, code):
        """Whether the file has an undecorated test of this name, and ``code`` comes from elsewhere."""
        path = _path(item)
        if os.path.realpath(code.co_filename) == path:
            return False
        if os.path.isfile(code.co_filename) and not self._trust.distrusts_code(code):
            return False
        if path not in self._files:
            self._files[path] = _undecorated(path) if time.monotonic() < self._until else ()
        cls = getattr(item, "cls", None)
        return ((cls.__name__ if cls is not None else ""), _name(item)) in self._files[path]


def _undecorated(path):
    """(class or "", name) of every function of a file that nothing decorates, defined once."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ()
    names = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.decorator_list:
            names += [(node.name, child.name) for child in node.body if _is_undecorated(child)]
        elif _is_undecorated(node):
            names.append(("", node.name))
    return frozenset(name for name in names if names.count(name) == 1)


def _is_undecorated(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.decorator_list


def _function(item):
    """The function of a test; None for tests that are something else."""
    cls = getattr(item, "cls", None)
    if cls is None:
        return function_of(getattr(item, "_obj", None))
    name = _name(item)
    for base in cls.__mro__:
        if name in vars(base):
            return function_of(vars(base)[name])
    return None


def _name(item):
    """The name of a test's function, without the parameters that pytest adds."""
    return getattr(item, "originalname", None) or item.name.partition("[")[0]


def _path(item):
    return os.path.realpath(str(getattr(item, "path", None) or getattr(item, "fspath", "")))


def _owners(item):
    """The module and the classes that a test stands in, without those of libraries."""
    module = getattr(item, "module", None)
    if isinstance(module, types.ModuleType):
        yield module
    for base in getattr(getattr(item, "cls", None), "__mro__", ()):
        if base.__module__ == getattr(module, "__name__", None):
            yield base


class Bindings(object):
    """The names of a module or class, and which functions, classes and modules they stood for."""

    def __init__(self, owner):
        values = list(vars(owner).items())
        self.names = frozenset(name for name, _ in values)
        self.size = len(values)
        self.known = {
            name: (value, function_of(value), code_of(value))
            for name, value in values
            if isinstance(value, _BOUND) or code_of(value)
        }


def _fixtures(item):
    """The definitions of every fixture that a test uses."""
    named = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return [fixture for definitions in list(named.values()) for fixture in definitions or ()]
