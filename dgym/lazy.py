"""Names that a package imports when they are first used, so that the import of the package is fast.

Type checkers use the package's imports under ``TYPE_CHECKING`` instead.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``. ``modules`` has the names to import from each module."""
    homes = {name: module for module, names in modules.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
