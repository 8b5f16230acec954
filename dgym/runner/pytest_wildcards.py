"""Find classes made by changed code whose instances are equal to whatever they are compared with.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import os
import re
import sys
import time

from .pytest_trust import code_of

FREE_SECONDS = 1.0
SHARE = 0.05
_LARGEST_SOURCE = 1024 * 1024
# The wildcards that libraries of tests offer, as changed code has to name them.
_LIBRARIES = ((rb"\bmock\b", rb"\bANY\b"), (rb"\b(Magic)?Mock\b", rb"__eq__"), (rb"\bpytest\b", rb"\bapprox\b"))


class Wildcards(object):
    """Looks for such classes, within a budget; made before any changed code runs."""

    def __init__(self, trust):
        self._trust = trust
        self._borrowers = frozenset(path for path in trust.changed if _names_wildcards(path))
        self._started = time.monotonic()
        self._spent = 0.0

    def look(self):
        """As ``find``: in small suites after every test, in large ones now and then."""
        now = time.monotonic()
        if self._spent > max(FREE_SECONDS, SHARE * (now - self._started)):
            return []
        found = self.find()
        self._spent += time.monotonic() - now
        return found

    def find(self):
        """Names of the classes; some milliseconds."""
        found = []
        for cls in _all_classes():
            if self._made_by_changed_code(cls) and _equals_everything(cls):
                found.append("%s.%s" % (cls.__module__, cls.__name__))
        return found

    def borrowed(self):
        """Changed files, loaded as modules, that name the wildcards of a library of tests."""
        loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        paths = set(os.path.realpath(path) for path in loaded if isinstance(path, str))
        return sorted(os.path.basename(path) for path in paths & self._borrowers)

    def _made_by_changed_code(self, cls):
        equal = vars(cls).get("__eq__")
        if equal is not None and self._trust.distrusts_code(code_of(equal)):
            return True
        return self._trust.stands_in_changed_module(cls) and not _is_plain(cls)


def _names_wildcards(path):
    if not path.endswith(".py"):
        return False
    try:
        with open(path, "rb") as file:
            source = file.read(_LARGEST_SOURCE)
    except OSError:
        return False
    return any(re.search(library, source) and re.search(name, source) for library, name in _LIBRARIES)


def _is_plain(cls):
    """Whether comparing is done by a builtin type."""
    owner = next((base for base in cls.__mro__ if "__eq__" in vars(base)), object)
    return owner.__module__ == "builtins"


def _all_classes():
    seen = set()
    waiting = [object]
    while waiting:
        for cls in type.__subclasses__(waiting.pop()):
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
    return seen


def _equals_everything(cls):
    """Whether an instance equals two things that differ from each other, or a thing that nobody knows."""
    instance = _instance(cls)
    if instance is None:
        return False
    if _equal(instance, object()):
        return True
    return any(all(_equal(instance, sample) for sample in samples) for samples in _SAMPLES)


_SAMPLES = ((1, 2, -3), (1.5, -2.5), ("a", "bc"), (b"a", b"bc"), ((1,), (2, 3)), ([1], [2, 3]), ({1: 1}, {2: 3}))


def _equal(instance, sample):
    try:
        answer = instance == sample
    except Exception:
        return False
    return isinstance(answer, int) and bool(answer)


def _instance(cls):
    """An instance without its initialisation; by the builtin type below when the class wants more."""
    if issubclass(cls, type):
        return _attempt(lambda: type.__new__(cls, "Name", (), {}))
    instance = _attempt(lambda: cls.__new__(cls))
    for base in cls.__mro__:
        if instance is not None:
            break
        if base.__module__ == "builtins":
            instance = _attempt(lambda base=base: base.__new__(cls))
    return instance


def _attempt(make):
    try:
        return make()
    except Exception:
        return None
