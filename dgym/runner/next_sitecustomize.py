"""Lets the runner's ``sitecustomize`` stand before the environment's own, which Python then does not find."""

import importlib.machinery
import importlib.util
import os
import sys


def run_next(here):
    """Run the ``sitecustomize`` that ``sys.path`` has outside of the directory ``here``, if there is one."""
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
