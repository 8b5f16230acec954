"""Finds the line where a function's body begins, without importing or running anything."""

import ast
import dis
import tokenize


def first_line_of_code(code):
    """The first line that runs when the function of this code object is called."""
    for _, line in dis.findlinestarts(code):
        if line is not None and line != code.co_firstlineno:
            return line
    return code.co_firstlineno


def lines_of_code(code):
    """Every line on which this code object (not those nested in it) stops."""
    return frozenset(line for _, line in dis.findlinestarts(code) if line is not None)


def lines_of_file(filename):
    """Every line of a source file on which a debugger can stop; empty when it cannot be compiled."""
    try:
        with tokenize.open(filename) as stream:
            pending = [compile(stream.read(), filename, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    lines = set()
    while pending:
        code = pending.pop()
        lines.update(lines_of_code(code))
        pending.extend(constant for constant in code.co_consts if hasattr(constant, "co_code"))
    return frozenset(lines)


def function_line(filename, dotted):
    """The first line of the body of function ``name`` or ``Class.method`` in a source file; None if it has none."""
    try:
        with tokenize.open(filename) as stream:
            body = ast.parse(stream.read()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    found = None
    for name in dotted.split("."):
        found = _definition(body, name)
        if found is None:
            return None
        body = found.body
    return _body_line(found)


def _definition(body, name):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    pending = list(body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, kinds):
            if node.name == name:
                return node
        else:
            # A definition may stand under if, try or with.
            pending.extend(
                child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler))
            )
    return None


def _body_line(node):
    if isinstance(node, ast.ClassDef):
        return None
    statements = node.body
    if len(statements) > 1 and _is_docstring(statements[0]):
        statements = statements[1:]
    first = statements[0]
    decorators = getattr(first, "decorator_list", [])
    return min([first.lineno] + [decorator.lineno for decorator in decorators])


def _is_docstring(node):
    if not isinstance(node, ast.Expr):
        return False
    value = node.value
    # Before 3.8 a string is ast.Str with .s, later ast.Constant with .value.
    return isinstance(getattr(value, "value", getattr(value, "s", None)), str)
