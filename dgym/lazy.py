"""Names and plug-ins that are imported when they are first used, so that the import of a package is fast."""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def lazy_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``. ``modules`` has the names to import from each module.

    Type checkers use the package's imports under ``TYPE_CHECKING`` instead.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name


@cache
def installed(group: str) -> "dict[str, EntryPoint]":
    """Return the installed plug-ins of an entry point group by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=group)}
