"""Sandboxes on this machine: under bubblewrap or, on request, as plain processes.

Both start the runner that pods run, under the task's interpreter or a virtual environment made for its requirements.
"""

from dgym.sandbox.cache import cache_directory
from dgym.sandbox.local.bubblewrap import bubblewrap_problem, bubblewrap_works, check_workspace
from dgym.sandbox.local.environments import ensure_environment, installer_environment, requirement_name
from dgym.sandbox.local.installation import InstalledProject, ProjectRequest, install_project, names_version
from dgym.sandbox.local.interpreter import Interpreter, find_version, inspect_interpreter, resolve_python
from dgym.sandbox.local.provider import LocalProvider, remove_leftovers
from dgym.sandbox.local.resolving import Pinned, known_pins, pin_requirements

__all__ = [
    "InstalledProject",
    "Interpreter",
    "LocalProvider",
    "Pinned",
    "ProjectRequest",
    "bubblewrap_problem",
    "bubblewrap_works",
    "cache_directory",
    "check_workspace",
    "ensure_environment",
    "find_version",
    "inspect_interpreter",
    "install_project",
    "installer_environment",
    "known_pins",
    "names_version",
    "pin_requirements",
    "remove_leftovers",
    "requirement_name",
    "resolve_python",
]
