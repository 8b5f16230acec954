"""Fuzz targets: each module has a ``TARGET`` and is imported only when its target runs."""

import importlib

from tests.fuzz.engine import Target

NAMES = ("frames", "reports", "manifests", "archives", "patches", "policies", "trajectories", "configurations")


def load(name: str) -> Target:
    """The target of that name."""
    target: Target = importlib.import_module(f"{__name__}.{name}").TARGET
    return target
