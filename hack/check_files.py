"""Fails on files over 700 lines, private imports, Python files in ``operator/``, and expressions that may backtrack.

The name of a private module starts with an underscore. Other packages import its names from the package.

A Python file such as ``__init__.py`` in ``operator/`` could shadow the standard library's module ``operator``. Then no
interpreter could start in the root of the repository.

Trusted code may have a regular expression with unbounded repetition only if it is in hack/expressions.txt. The time
that a backtracking expression takes is at least quadratic in the length of the text. Meanwhile the event loop of all
episodes is blocked. Text that an agent, a model or a repository wrote must be parsed with string methods or character
classes. ``--write`` updates the list. Use it only if the text is trusted or short, or if the expression cannot
backtrack.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAXIMUM_LINES = 700
ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"dgym": ROOT / "dgym", "dgym_operator": ROOT / "operator/dgym_operator"}
ALLOWED = ROOT / "hack" / "expressions.txt"
_NOT_TRUSTED = ("dgym/runner/", "dgym/benchmarks/mini_nightmare/")
_UNBOUNDED = ("*", "+", ",}")


def tracked_python_files() -> list[Path]:
    """Return the Python files that git tracks or would add."""
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / line for line in output.splitlines() if (ROOT / line).is_file()]


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each module, or name of a module, that is imported absolutely."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def private_imports(path: Path) -> Iterator[str]:
    """Yield a problem for each private module that ``path`` imports from outside of the module's package."""
    for line, name in imported_modules(ast.parse(path.read_text(encoding="utf-8"))):
        root, *parts = name.split(".")
        package = SOURCES.get(root)
        for part in parts:
            if package and part.startswith("_") and not part.startswith("__") and not path.is_relative_to(package):
                yield f"{path.relative_to(ROOT)}:{line}: imports the private module {name}; import from its package"
            package = package / part if package else None


def expressions() -> list[str]:
    """Return a line with file and expression for each expression of trusted code with unbounded repetition."""
    paths = [path for path in tracked_python_files() if any(path.is_relative_to(each) for each in SOURCES.values())]
    names = {path.relative_to(ROOT).as_posix(): path for path in paths}
    trusted = {name: path for name, path in names.items() if not name.startswith(_NOT_TRUSTED)}
    return sorted({f"{name}: {text}" for name, path in trusted.items() for text in _of_file(path)})


def _of_file(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_re(node.func.value)
            and node.args
        ):
            text = ast.unparse(node.args[0])
            if any(mark in text for mark in _UNBOUNDED) or not isinstance(node.args[0], ast.Constant):
                yield text.replace("\n", "\\n")


def _is_re(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "re"


def unlisted_expressions() -> list[str]:
    """Return a problem for each expression that is not listed, and for each listed one that does not exist."""
    found, allowed = expressions(), ALLOWED.read_text("utf-8").splitlines()
    problems = [f"{line}\n  may backtrack: read hack/check_files.py" for line in found if line not in allowed]
    return problems + [
        f"{line}\n  is gone: remove it from hack/expressions.txt" for line in allowed if line not in found
    ]


def main(arguments: list[str]) -> int:
    """Print every problem. Return 1 if there are any."""
    if arguments == ["--write"]:
        ALLOWED.write_text("".join(f"{line}\n" for line in expressions()), "utf-8")
    problems = unlisted_expressions()
    for path in tracked_python_files():
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAXIMUM_LINES:
            problems.append(f"{path.relative_to(ROOT)}: {lines} lines, more than {MAXIMUM_LINES}; split it by ideas")
        if any(path.is_relative_to(source) for source in SOURCES.values()):
            problems += private_imports(path)
    problems += [f"{path.relative_to(ROOT)}: shadows the standard library's operator module; remove it"
                 for path in (ROOT / "operator").glob("*.py")]  # fmt: skip
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
