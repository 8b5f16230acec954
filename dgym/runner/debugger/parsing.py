"""Splits the text of a call to the debugger into commands.

The text may have several lines, statements of several lines and ``commands`` blocks.
"""

import codeop
import re

COMMANDS = frozenset(
    "a alias args b break bt c cl clear commands condition cont continue d disable display down enable exceptions h "
    "help ignore j jump l list ll longlist n next p pp r restart return retval run rv s step tbreak u unalias "
    "undisplay unt until up w whatis where q quit exit EOF interact debug source".split()
)
LEAVING = frozenset(["q", "quit", "exit", "EOF"])
RESTARTING = frozenset(["run", "restart"])
_WITHOUT_ARGUMENT = frozenset("a args bt c cont continue ll longlist n next r return rv s step w where".split())
_WITH_EXPRESSION = frozenset(["p", "pp", "whatis", "display"])
_CONTINUED = re.compile(r"(\s|elif\b|else\b|except\b|finally\b|[)\]}])")
_WORD = re.compile(r"\w+")
_OPERATION = re.compile(r"(\w+)\s*(?:[-+*/%<>&|^@]|==|!=|(?:and|if|in|is|not|or)\b)")
_STATEMENT = re.compile(r"(\w+)(\s*(?:=(?!=)|(?:[-+*/%&|^@]|//|\*\*|<<|>>)=)|[.\[(])")

REFUSED = {
    "interact": "interact needs a terminal; use p EXPRESSION or !STATEMENT instead.",
    "debug": "debug starts a second debugger inside this one, which is not supported; set a breakpoint and call the "
    "function from a test instead.",
    "source": "source is not supported here; use the view tool, or ll for the current function.",
}


def first_word(line):
    """Returns the command word of a line, or an empty string if the line is a statement."""
    line = line.strip()
    match = None if is_statement(line) else _WORD.match(line)
    return match.group() if match else ""


def is_statement(line):
    """Returns True if a line is Python although it begins with a command: ``s.append(1)``, ``c = 3``, ``list(x)``."""
    match = _STATEMENT.match(line)
    if not match:
        operation = _OPERATION.match(line)
        return bool(operation) and operation.group(1) in _WITHOUT_ARGUMENT
    return not (match.group(1) in _WITH_EXPRESSION and match.group(2) in ("(", "["))


def refusal(text):
    """Returns the reason why a call is refused, or None."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return "Empty input; give a debugger command such as: n, c, p EXPRESSION, b FILE:LINE, w, ll."
    depth = 0
    for line in lines:
        words = {first_word(part) for part in line.split(";;")}
        if words & set(REFUSED) and not line[:1].isspace():
            return REFUSED[(words & set(REFUSED)).pop()]
        if depth and line.strip() == "end":
            depth -= 1
        elif first_word(line) == "commands":
            depth += 1
    if depth:
        return "commands needs its lines and the closing 'end' in the same call: commands 1\\np x\\nend"
    if first_word(lines[0]) in RESTARTING and len(lines[0].split()) > 1:
        return "run takes no arguments here; to run with other arguments give another entrypoint."
    return None


def split_commands(text):
    """Returns the commands of a call in order. A statement of several lines is one command."""
    lines = text.replace("\r\n", "\n").strip("\n").split("\n")
    commands = []
    in_block = False
    while lines:
        line = lines.pop(0)
        if not line.strip():
            continue
        if in_block:
            in_block = line.strip() != "end"
        elif first_word(line) == "commands":
            in_block = True
        else:
            line = _take_rest(line.strip(), lines)
        commands.append(line)
    return commands


def _take_rest(line, lines):
    word = first_word(line)
    if word in COMMANDS and word not in _WITH_EXPRESSION:
        return line
    while lines and _continues(line, word, lines):
        line += "\n" + lines.pop(0)
    return line.rstrip()


def _continues(line, word, lines):
    source = line.lstrip("!")
    if word in _WITH_EXPRESSION:
        source = source[len(word) :].strip()
    elif _CONTINUED.match(lines[0]) or (not lines[0] and any(map(_CONTINUED.match, lines[1:2]))):
        return True
    elif "\n" in source and not source.rstrip().endswith(("\\", ":")) and _complete(source + "\n"):
        return False
    return not _complete(source)


def _complete(source):
    try:
        return codeop.compile_command(source, "<stdin>", "single") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True
