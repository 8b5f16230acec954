"""Fails when the trusted side has a regular expression that repeats without bound and is not in hack/expressions.txt.

An expression that backtracks takes time in the square of its text's length, or worse, and stops an event loop for all
episodes. Text that an agent, a model or a repository wrote is taken apart by string methods or classes of characters.
``--write`` adds what is missing: do so only where the text is of ours, is short, or the expression cannot backtrack.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "hack" / "expressions.txt"
_TRUSTED = ("dgym", "operator/dgym_operator")
_NOT_TRUSTED = ("dgym/runner/", "dgym/benchmarks/mini_nightmare/")
_UNBOUNDED = ("*", "+", ",}")


def expressions() -> list[str]:
    """A line for each expression: its file and itself."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *_TRUSTED]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = [name for name in names if name.endswith(".py") and not name.startswith(_NOT_TRUSTED)]
    found = {f"{name}: {text}" for name in paths if (ROOT / name).is_file() for text in _of_file(ROOT / name)}
    return sorted(found)


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


def main(arguments: list[str]) -> int:
    """Print what is not allowed, and what is allowed and gone; exit status 1 if there is anything."""
    found = expressions()
    if arguments == ["--write"]:
        ALLOWED.write_text("".join(f"{line}\n" for line in found), "utf-8")
        return 0
    allowed = ALLOWED.read_text("utf-8").splitlines()
    problems = [f"{line}\n  may backtrack: read hack/check_expressions.py" for line in found if line not in allowed]
    problems += [f"{line}\n  is gone: remove it from hack/expressions.txt" for line in allowed if line not in found]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
