"""The tool ``outline``."""

import ast
from typing import Annotated

from msgspec import Meta

from dgym import Tool, ToolContext, ToolError


class Outline(Tool):
    """List the functions and classes of a Python file with their lines."""

    mutates = False
    examples = ("outline calc.py",)

    def __init__(self, *, with_classes: bool = True) -> None:
        self._kinds = (ast.FunctionDef, ast.AsyncFunctionDef, *((ast.ClassDef,) if with_classes else ()))

    async def use(self, context: ToolContext, path: str, depth: Annotated[int, Meta(ge=1, le=5)] = 2) -> str:
        """List.

        Args:
            context: The episode's files.
            path: A Python file, relative to the workspace.
            depth: How deeply nested definitions are shown.
        """
        try:
            tree = ast.parse(await context.read_text(path))
        except SyntaxError as error:
            raise ToolError(f"`{path}` is not valid Python: {error.msg} in line {error.lineno}.") from None
        return "\n".join(self._lines(tree, depth)) or f"{path} defines nothing."

    def _lines(self, node: ast.AST, depth: int, indent: str = "") -> list[str]:
        lines = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, self._kinds):
                lines.append(f"{indent}{child.lineno}-{child.end_lineno} {child.name}")
                lines += self._lines(child, depth - 1, indent + "  ") if depth > 1 else []
        return lines
