"""Sandboxes on this machine: under bubblewrap or, on request, as plain processes.

Both start the same runner as a pod. Its interpreter is the task's interpreter, or that of a virtual environment which
is created for the task's requirements.
"""

from dgym.sandbox.local._bubblewrap import bubblewrap_problem, bubblewrap_works, check_workspace
from dgym.sandbox.local._environments import ensure_environment, installer_environment, pip_for, requirement_name
from dgym.sandbox.local._installation import InstalledProject, ProjectRequest, install_project, names_version
from dgym.sandbox.local._interpreter import Interpreter, find_version, inspect_interpreter, resolve_python
from dgym.sandbox.local._provider import LocalProvider, remove_leftovers
from dgym.sandbox.local._resolving import Pinned, known_pins, pin_requirements

__all__ = [
    "InstalledProject",
    "Interpreter",
    "LocalProvider",
    "Pinned",
    "ProjectRequest",
    "bubblewrap_problem",
    "bubblewrap_works",
    "check_workspace",
    "ensure_environment",
    "find_version",
    "inspect_interpreter",
    "install_project",
    "installer_environment",
    "known_pins",
    "names_version",
    "pin_requirements",
    "pip_for",
    "remove_leftovers",
    "requirement_name",
    "resolve_python",
]
