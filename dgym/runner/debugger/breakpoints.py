"""The table of breakpoints: restores and reports it, finds lines with code, and explains breakpoints without hits."""

import ast
import bdb
import dis
import os
import sys
import tokenize


_STATEMENTS = (ast.stmt, ast.excepthandler)


def _by_number():
    return [breakpoint_ for breakpoint_ in bdb.Breakpoint.bpbynumber if breakpoint_]


def next_number():
    """Returns the number of the next breakpoint."""
    return bdb.Breakpoint.next


def use_number(number):
    """Set the number of the next breakpoint. Lower numbers that are not in use remain unused."""
    numbered = bdb.Breakpoint.bpbynumber
    while len(numbered) < number:
        numbered.append(None)
    bdb.Breakpoint.next = max(bdb.Breakpoint.next, number)


def restore(debugger, table, following):
    """Replace all breakpoints by those of ``table``. ``following`` is the number of the next breakpoint.

    Returns:
        A sentence for each breakpoint that could not be set or is on a line without code.
    """
    before = {breakpoint_.number: breakpoint_ for breakpoint_ in _by_number()}
    for number in before:
        debugger.clear_bpbynumber(str(number))
    del bdb.Breakpoint.bpbynumber[1:]
    bdb.Breakpoint.next = 1
    problems = []
    for entry in sorted(table, key=lambda entry: entry["number"]):
        use_number(entry["number"])
        filename = debugger.canonic(os.path.join(debugger.workspace, entry["file"]))
        error = debugger.set_break(filename, entry["line"], entry.get("temporary", False), entry.get("condition"))
        if error:
            where = "%s:%d" % (entry["file"], entry["line"])
            problems.append("Breakpoint %d at %s was dropped: no such line." % (entry["number"], where))
            continue
        lines = lines_of_file(filename)
        if lines and entry["line"] not in lines:
            note = explain_place(filename, entry["line"], debugger.relative(filename))
            problems.append("Breakpoint %d at %s:%d: %s" % (entry["number"], entry["file"], entry["line"], note))
        _fill(bdb.Breakpoint.bpbynumber[entry["number"]], entry, before.get(entry["number"]))
    use_number(following)
    return problems


def _fill(breakpoint_, entry, before):
    breakpoint_.ignore = breakpoint_.ignore_set = entry.get("ignore_count", 0)
    if getattr(before, "ignore_set", None) == breakpoint_.ignore_set:
        breakpoint_.ignore = before.ignore
    breakpoint_.hits = entry.get("hits", 0)
    # The counts of this run are kept. Otherwise the program's end would report that the breakpoint was never hit.
    breakpoint_.hits_before = getattr(before, "hits_before", 0) if before else breakpoint_.hits
    breakpoint_.stops = getattr(before, "stops", 0)
    if not entry.get("enabled", True):
        breakpoint_.disable()


def report(debugger):
    """Returns the table of breakpoints in the form of the messages."""
    return [
        {
            "number": breakpoint_.number,
            "file": debugger.relative(breakpoint_.file),
            "line": breakpoint_.line,
            "condition": breakpoint_.cond,
            "ignore_count": getattr(breakpoint_, "ignore_set", breakpoint_.ignore),
            "hits": breakpoint_.hits,
            "enabled": bool(breakpoint_.enabled),
            "temporary": bool(breakpoint_.temporary),
        }
        for breakpoint_ in _by_number()
    ]


def explain_misses(debugger, tracing_lost):
    """Returns a sentence with the reason for each enabled breakpoint that did not stop this run of the program."""
    sentences = []
    # The main module may have no __file__ at the program's end, so the traced files are included.
    ran = {debugger.canonic(filename) for filename in debugger.traced_files}
    for breakpoint_ in _by_number():
        if breakpoint_.enabled and not getattr(breakpoint_, "stops", 0):
            where = "%s:%d" % (debugger.relative(breakpoint_.file), breakpoint_.line)
            why = _explain_miss(breakpoint_, tracing_lost, ran)
            sentences.append("Breakpoint %d at %s %s." % (breakpoint_.number, where, why))
    return sentences


def _explain_miss(breakpoint_, tracing_lost, ran):
    reached = breakpoint_.hits - getattr(breakpoint_, "hits_before", 0)
    if reached and breakpoint_.cond:
        return "was reached %d times but its condition %s never held%s" % (
            reached,
            breakpoint_.cond,
            " often enough for its ignore count" if getattr(breakpoint_, "ignore_set", 0) else "",
        )
    if reached:
        return "was reached %d times, all within its ignore count" % reached
    if tracing_lost:
        return "was not hit: the program replaced the debugger's trace function (sys.settrace)"
    return "was never hit: " + _not_reached(breakpoint_, ran)


def _not_reached(breakpoint_, ran):
    loaded = _loaded_files() | ran
    if os.path.realpath(breakpoint_.file) not in loaded:
        name = os.path.basename(breakpoint_.file)
        others = sorted(path for path in loaded if os.path.basename(path) == name and name != "__init__.py")
        if others:
            return "the program imported %s instead" % others[0]
        return "the program never imported that file"
    lines = lines_of_file(breakpoint_.file)
    if lines and breakpoint_.line not in lines:
        later = [line for line in sorted(lines) if line > breakpoint_.line]
        advice = "; the next line with code is %d" % later[0] if later else ""
        return "no code begins on that line" + advice
    return "the program never reached that line (or only in a child process)"


def explain_place(filename, line, shown):
    """Returns a sentence about a line on which the program does not stop, or stops at an unexpected time, else None."""
    lines = lines_of_file(filename)
    if not lines:
        return None
    found = _definition_at(filename, line)
    body = function_line(filename, found) if found else None
    if line not in lines:
        meant = body or min((later for later in lines if later > line), default=None)
        return "No code begins on line %d, so it stops nowhere.%s" % (
            line,
            _advice(meant, shown, found if body else None),
        )
    if found is None or (body is not None and body < line):
        return None
    if body == line:
        return "Line %d has the whole of %s: the program stops there when it is defined, too." % (line, found)
    text = "Line %d belongs to the definition of %s: the program stops there when it is defined" % (line, found)
    if body is None:
        return text + "."
    return "%s, not when it is called.%s" % (text, _advice(body, shown, found))


def next_code(filename, line, shown):
    """Returns a sentence with the first line after ``line`` that has code, or None."""
    later = [each for each in lines_of_file(filename) if each > line]
    return _advice(min(later), shown).strip() if later else None


def _advice(line, shown, name=None):
    if line is None:
        return ""
    if name:
        return " To stop in %s: b %s:%d" % (name, shown, line)
    return " The next line with code: b %s:%d" % (shown, line)


def _definition_at(filename, line):
    """Returns the dotted name of the function or class whose header (decorators, name, parameters) has the line."""
    try:
        with tokenize.open(filename) as stream:
            pending = [("", node) for node in ast.parse(stream.read()).body]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    while pending:
        prefix, node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno] + [decorator.lineno for decorator in node.decorator_list])
            if first <= line < (_body_line(node) or node.body[0].lineno) or line == first:
                return prefix + node.name
            prefix += node.name + "."
        pending.extend((prefix, child) for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS))
    return None


def _loaded_files():
    files = set()
    for module in list(sys.modules.values()):
        filename = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(filename, str):
            files.add(os.path.realpath(filename))
    return files


def first_line_of_code(code):
    """Returns the first line that runs when the function of this code object is called."""
    for _, line in dis.findlinestarts(code):
        if line is not None and line != code.co_firstlineno:
            return line
    return code.co_firstlineno


def lines_of_code(code):
    """Returns all lines of this code object, without nested code objects, on which a debugger can stop."""
    return frozenset(line for _, line in dis.findlinestarts(code) if line is not None)


def lines_of_file(filename):
    """Returns all lines of a source file on which a debugger can stop; empty if the file cannot be compiled."""
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
    """Returns the first line of the body of a function in a source file, or None if it is not found.

    ``dotted`` is the name of the function, or ``Class.method``.
    """
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
            # A definition may be inside if, try or with.
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
    # A string is an ast.Str with .s before 3.8, and an ast.Constant with .value since 3.8, where .s is deprecated.
    return isinstance(value.value if hasattr(value, "value") else getattr(value, "s", None), str)
