"""Names that a package imports at their first use, so that importing the package stays cheap.

A type checker reads them from the package's imports under ``TYPE_CHECKING``.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``, by the names that each of ``modules`` defines."""
    homes = {name: module for module, names in modules.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
