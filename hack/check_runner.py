#!/usr/bin/env python3
"""Check that the runner's files work with Python 3.6 and need only the standard library.

The oldest Python of pyenv (3.6 if installed) compiles them. vermin finds modules and functions that 3.6 lacks. Their
imports are checked. A file must not have the name of a standard library module, because Python puts the directory of a
script first on ``sys.path``.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ROOT / "dgym" / "runner"
OLDEST = (3, 6)
# The pytest of the task imports the plugins. The runner never imports them.
TEST_FRAMEWORK = {"pytest", "_pytest", "pluggy", "xdist"}
# project.py only runs in environments that have pip.
INSTALLER = {"project.py": {"pip"}}
_LIBRARY = sys.stdlib_module_names | {"asynchat", "asyncore", "distutils", "imp", "parser", "smtpd"}
# Newer than 3.6, but each use first checks whether the attribute exists.
GUARDED = ("os.register_at_fork", "sys.breakpointhook", "sys.orig_argv")


def sources() -> list[Path]:
    """Return every Python file of the runner."""
    return sorted(path for path in RUNNER.rglob("*.py") if "__pycache__" not in path.parts)


def interpreters() -> list[tuple[tuple[int, ...], Path]]:
    """Return the Pythons of pyenv that the runner supports, oldest first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = []
    for path in root.glob("versions/*/bin/python"):
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", path.parent.parent.name)
        if match:
            found.append((tuple(int(part) for part in match.groups()), path))
    return sorted(entry for entry in found if entry[0] >= OLDEST)


def check_syntax(paths: list[Path]) -> list[str]:
    """Return the syntax errors that the oldest available Python reports."""
    available = interpreters()
    if not available:
        print("check_runner: no pyenv here; the syntax is checked by this Python's parser alone", file=sys.stderr)
        return [problem for path in paths if (problem := _parse(path))]
    version, python = available[0]
    program = (
        "import sys\n"
        "for path in sys.argv[1:]:\n"
        "    with open(path, 'rb') as stream: text = stream.read()\n"
        "    try: compile(text, path, 'exec')\n"
        "    except SyntaxError as error: print('%s:%s: %s' % (path, error.lineno, error.msg))\n"
    )
    answer = subprocess.run(
        [str(python), "-I", "-S", "-W", "error", "-c", program, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    name = ".".join(map(str, version))
    return [f"{line} (Python {name})" for line in (answer.stdout + answer.stderr).splitlines()]


def _parse(path: Path) -> str:
    try:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    except SyntaxError as error:
        return f"{path}:{error.lineno}: {error.msg}"
    return ""


def check_vermin(paths: list[Path]) -> list[str]:
    """Return the uses of newer features that vermin reports."""
    vermin = Path(sys.executable).with_name("vermin")
    options = [
        "--no-tips",
        "--violations",
        "--target=3.6-",
        *(word for name in GUARDED for word in ("--exclude", name)),
    ]
    answer = subprocess.run([str(vermin), *options, *map(str, paths)], capture_output=True, text=True, check=False)
    return [] if answer.returncode == 0 else (answer.stdout + answer.stderr).splitlines()


def check_names(paths: list[Path]) -> list[str]:
    """Return files and directories that would hide a module of the standard library."""
    names = {path.stem: path for path in paths} | {path.parent.name: path.parent for path in paths}
    return [f"{names[name]}: hides the standard library's module" for name in sorted(set(names) & _LIBRARY)]


def check_imports(path: Path) -> list[str]:
    """Return imports of anything but the standard library and the runner's own files."""
    allowed = set(sys.stdlib_module_names) | {"dgym_runner"}
    if path.parent.name == "scoring" or path.stem.endswith("plugin"):
        allowed |= TEST_FRAMEWORK
    allowed |= INSTALLER.get(path.name, set())
    problems = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
            if node.module == "__future__" and any(alias.name == "annotations" for alias in node.names):
                problems.append(f"{path}:{node.lineno}: Python 3.6 has no 'from __future__ import annotations'")
        problems += [
            f"{path}:{getattr(node, 'lineno', 0)}: imports {name}, which the sandbox may not have"
            for name in names
            if name.partition(".")[0] not in allowed
        ]
    return problems


def main() -> int:
    """Print every problem. Return 1 if there are any."""
    paths = sources()
    problems = check_syntax(paths)
    problems += check_vermin(paths)
    problems += check_names(paths)
    for path in paths:
        problems += check_imports(path)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
