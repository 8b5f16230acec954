"""The commands of the debugger: pdb's commands with changes in evaluation, output and the location of breakpoints.

Evaluation differs in two ways from ``eval`` in a function's frame. Local variables are visible inside comprehensions
and lambdas. Assignments to local variables persist in every frame, regardless of how the program was stopped.
"""

import ast
import functools
import linecache
import operator
import os
import pdb  # noqa: T100 - this is one
import pprint
import re
import shlex
import sys
import threading
import traceback

from ..frames import call_from
from . import breakpoints
from . import parsing
from .parsing import COMMANDS, is_statement, refusal

_ABOUT_BREAKPOINTS = frozenset("b break tbreak cl clear condition ignore commands enable disable".split())

_AT_A_FRAME = frozenset("a args bt d down j jump l list ll longlist retval rv u up w where".split())
_NOT_STARTED = (
    "the program has not started: %s is about to start, no line of it has run yet. "
    "c runs to a breakpoint, n or s to the first line of its own code."
)

_SILENT = {
    "a": "The function has no arguments.",
    "alias": "No aliases are defined.",
    "b": "No breakpoints are set.",
    "cl": "No breakpoints are set.",
    "": "The statement was executed; it printed nothing.",
}
_SILENT.update({"args": _SILENT["a"], "break": _SILENT["b"], "clear": _SILENT["cl"], "tbreak": _SILENT["b"]})

_LONGEST_MESSAGE = 2000
_UNBOUNDED = frozenset(["h", "help", "pp"])
_WIDTH = 100

_GLUED = re.compile(r"^(p|pp|whatis|display)(?=[(\[])")


class _Expressions(object):
    """The functions of ``re`` that pdb of Python 3.12 uses, without replacement templates.

    To parse a template, the interpreter imports ``re`` again, and the program may have another module of that name.
    """

    compile = staticmethod(re.compile)
    escape = staticmethod(re.escape)

    @staticmethod
    def sub(pattern, template, text):
        return re.sub(pattern, lambda match: template.replace("\\1", match.group(1)), text)


if sys.version_info[:2] == (3, 12):
    pdb.re = _Expressions


class Commands(pdb.Pdb):
    """The commands of the debugger. ``tracing`` decides where to stop; ``remote_pdb`` communicates with the host."""

    def onecmd(self, line):
        if self.commands_defining:
            return pdb.Pdb.onecmd(self, line)
        # Since 3.13, pdb executes p(x) as a function call.
        line = _GLUED.sub(lambda match: match.group() + " ", line)
        word = line.split(None, 1)[0] if line.strip() else ""
        refused = refusal(line) if word in COMMANDS and word != "commands" else None
        if not line.startswith("_pdbcmd"):
            self.last_line = line.strip() if word in COMMANDS else ""
        if refused:
            self.failed = True
            self.error(refused)
            return None
        if word in _AT_A_FRAME and self.before_start():
            self.failed = True
            self.error(_NOT_STARTED % self.title)
            return None
        if is_statement(line) or ("\n" in line and word not in COMMANDS):
            line = "!" + line.lstrip("!")
        stdout = self.stdout
        if word in _ABOUT_BREAKPOINTS:
            self.stdout = _RelativePaths(self)
        self.evaluating = threading.get_ident()
        self.shortens = word not in _UNBOUNDED
        try:
            return pdb.Pdb.onecmd(self, line)
        except KeyboardInterrupt:
            self.error("KeyboardInterrupt")
        except Exception:
            self.show_error()
        finally:
            self.evaluating = None
            self.shortens = True
            self.stdout = stdout
        return None

    def message(self, msg):
        pdb.Pdb.message(self, shortened(msg) if self.shortens else msg)

    def error(self, msg):
        # This method is also called if the condition of a breakpoint fails, which is not a failure of the command.
        self.failed = self.failed or self.evaluating is not None
        pdb.Pdb.error(self, msg)

    def silence(self):
        """Returns the answer to the last command if it printed nothing."""
        return _SILENT.get(self.last_line, "Done.")

    def values(self):
        """Returns the variables of the current frame. Before 3.13, only pdb's copy contains the agent's assignments."""
        return self.curframe.f_locals if sys.version_info >= (3, 13) else self.curframe_locals

    def show_error(self):
        """Print the exception that is being handled, in pdb's format."""
        kind, value = sys.exc_info()[:2]
        try:
            text = traceback.format_exception_only(kind, value)[-1].strip()
        except Exception:
            text = kind.__name__
        if self.before_start() and issubclass(kind, NameError):
            text = "%s; %s" % (text, _NOT_STARTED % self.title)
        self.error(text)

    _error_exc = show_error

    def default(self, line):
        saved = sys.stdout, sys.displayhook
        sys.stdout, sys.displayhook = self.stdout, self.displayhook
        try:
            execute(line.lstrip("!").strip(), self.curframe, self.values())
        except BaseException:
            self.show_error()
        finally:
            sys.stdout, sys.displayhook = saved

    def _getval(self, arg):
        try:
            return evaluate(arg, self.curframe, self.values())
        except BaseException:
            self.show_error()
            raise

    def _getval_except(self, arg, frame=None):
        values = self.values() if frame is None else frame.f_locals
        try:
            return _DisplayValue(evaluate(arg, frame or self.curframe, values), self)
        except BaseException:
            kind, value = sys.exc_info()[:2]
            return _Raised("** raised %s **" % traceback.format_exception_only(kind, value)[-1].strip())

    def _show(self, arg, form):
        saved = sys.stdout
        sys.stdout = self.stdout
        try:
            value = self._getval(arg)
        except BaseException:
            return
        else:
            try:
                self.message(call_from(self.curframe, form, value))
            except BaseException:
                self.show_error()
        finally:
            sys.stdout = saved

    def displayhook(self, obj):
        if obj is not None:
            self.message(call_from(self.curframe, repr, obj))

    def do_p(self, arg):
        self._show(arg, repr)

    def do_pp(self, arg):
        self._show(arg, functools.partial(pprint.pformat, width=_WIDTH, compact=True))

    def do_commands(self, arg):
        # The whole block is in the queue. pdb leaves it there if it refuses the command, and leaves the rest of the
        # block after a command that resumes the program. Both would then run as ordinary commands.
        lines = [line.strip() for line in self.cmdqueue]
        following = self.cmdqueue[lines.index("end") + 1 :] if "end" in lines else []
        numbers = [entry.number for entry in pdb.bdb.Breakpoint.bpbynumber if entry]
        number = arg.strip() or str(numbers[-1] if numbers else 1)
        try:
            self.get_bpbynumber(number)
        except ValueError as error:
            self.error("cannot set commands: %s" % error)
        else:
            pdb.Pdb.do_commands(self, number)
        self.cmdqueue[:] = following

    def do_break(self, arg, temporary=0):
        place, comma, condition = arg.partition(",")
        place = unquoted(place)
        found = self._function_place(place.strip()) if place.strip() else None
        last = breakpoints.next_number()
        pdb.Pdb.do_break(self, "%s%s%s" % (found or place, comma, condition), temporary)
        if breakpoints.next_number() > last:
            note = breakpoints.explain_place(*self._place_of(last))
            if note:
                self.message(note)
        elif place.strip():
            self.failed = True
            self._print_next_code_line(place.strip())

    def _place_of(self, number):
        entry = pdb.bdb.Breakpoint.bpbynumber[number]
        return entry.file, entry.line, self.relative(entry.file)

    def _print_next_code_line(self, place):
        """Print the next line with code, after pdb refused a breakpoint on a line without code."""
        filename, _, line = place.rpartition(":")
        found = self.lookupmodule(filename) if filename else self.canonic(self.defaultFile())
        if found and line.strip().isdigit():
            advice = breakpoints.next_code(found, int(line), self.relative(found))
            if advice:
                self.message(advice)

    def do_list(self, arg):
        pdb.Pdb.do_list(self, arg)
        first = arg.partition(",")[0].strip()
        filename = self.curframe.f_code.co_filename
        if first.isdigit() and int(first) > len(linecache.getlines(filename, self.curframe.f_globals)):
            self.failed = True

    do_l = do_list

    def do_help(self, arg):
        if arg.strip() in parsing.REFUSED:
            self.error(parsing.REFUSED[arg.strip()])
        else:
            pdb.Pdb.do_help(self, arg.strip())

    do_h = do_help

    def help_pdb(self):
        self.do_help("")

    def get_names(self):
        # pdb's help lists these names.
        hidden = ["do_" + word for word in parsing.REFUSED] + ["do_EOF", "help_pdb"]
        return [name for name in pdb.Pdb.get_names(self) if name not in hidden]

    do_b = do_break

    def _function_place(self, place):
        """Returns ``file:line`` of a function's first line of code, or None if the place is not a function."""
        filename, colon, name = place.rpartition(":")
        if name.isdigit() or not name:
            return None
        if colon:
            return self._place(self.lookupmodule(filename), name)
        try:
            found = evaluate(name, self.curframe, self.values())
            code = getattr(found, "__wrapped__", found)
            code = getattr(code, "__func__", code).__code__
            return "%s:%d" % (self.canonic(code.co_filename), breakpoints.first_line_of_code(code))
        except Exception:
            module, _, rest = name.partition(".")
            inside = self._place(self.lookupmodule(module), rest) if rest else None
            return inside or self._place(self.canonic(self.defaultFile()), name)

    def _place(self, filename, name):
        line = breakpoints.function_line(filename, name) if filename else None
        return "%s:%d" % (filename, line) if line else None

    def lookupmodule(self, filename):
        """Returns the path of a file, given relative to the workspace, absolute, or as a module's dotted name."""
        for candidate in (filename, filename + ".py", filename.replace(".", "/") + ".py"):
            path = os.path.join(self.workspace, candidate)
            if os.path.isfile(path):
                return self.canonic(path)
        found = pdb.Pdb.lookupmodule(self, filename)
        return self.canonic(found) if found else None

    def do_clear(self, arg):
        if not arg:
            cleared = [entry for entry in pdb.bdb.Breakpoint.bpbynumber if entry]
            self.clear_all_breaks()
            for entry in cleared:
                self.message("Deleted %s" % entry)
            return
        arg = unquoted(arg)
        filename, colon, line = arg.rpartition(":")
        found = self.lookupmodule(filename) if colon and line.strip().isdigit() else None
        there = self.get_breaks(found, int(line)) if found else []
        # Breakpoints are cleared by number, because before 3.7 pdb prints nothing if it clears a place.
        pdb.Pdb.do_clear(self, " ".join(str(entry.number) for entry in there) or arg)

    do_cl = do_clear

    def do_ignore(self, arg):
        pdb.Pdb.do_ignore(self, arg)
        number = arg.split()[:1]
        try:
            entry = self.get_bpbynumber(number[0])
        except (IndexError, ValueError):
            return
        entry.ignore_set = entry.ignore

    def do_quit(self, arg):  # noqa: ARG002
        self.leave("quit")

    do_q = do_exit = do_EOF = do_quit

    def do_run(self, arg):  # noqa: ARG002
        self.leave("restart")

    do_restart = do_run


for _name in [name for name in vars(Commands) if name.startswith("do_")]:
    # pdb's help shows docstrings, and lists commands without a docstring separately.
    vars(Commands)[_name].__doc__ = getattr(getattr(pdb.Pdb, _name, None), "__doc__", None)


def shortened(text):
    """Returns ``text``, without its middle if it is long."""
    if not isinstance(text, str) or len(text) <= _LONGEST_MESSAGE:
        return text
    half = _LONGEST_MESSAGE // 2
    mark = "[... %d characters cut: pp shows more, a slice any part ...]" % (len(text) - 2 * half)
    return text[:half] + mark + text[-half:]


def unquoted(place):
    """Returns a place without the quotes of a shell, which the other tools also accept: ``"my file.py":3``."""
    try:
        words = shlex.split(place)
    except ValueError:
        return place
    return words[0] if len(words) == 1 else place


class _DisplayValue(object):
    """Wraps the value of a display expression, so that its methods run without the debugger's frames on the stack."""

    def __init__(self, value, debugger):
        self.value = value
        self._debugger = debugger

    def __repr__(self):
        return call_from(self._debugger.curframe, repr, self.value)

    def __ne__(self, other):
        value = getattr(other, "value", other)
        return self.value is not value and call_from(self._debugger.curframe, operator.ne, self.value, value)


class _Raised(str):
    """The value of a display expression that could not be evaluated. Its repr has no quotes."""

    def __repr__(self):
        return str(self)


class _RelativePaths(object):
    """Output stream that makes paths in pdb's messages about breakpoints relative to the workspace."""

    def __init__(self, debugger):
        self._answer = debugger.answer
        self._prefix = os.path.join(debugger.workspace, "")

    def write(self, text):
        return self._answer.write(text.replace(self._prefix, ""))

    def flush(self):
        pass


_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame keeps its variables in slots, f_locals is a copy
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_WITH_AWAIT = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)  # from Python 3.8 on


def evaluate(expression, frame, frame_locals):
    """Returns the value of an expression in a frame. Raises the expression's exception."""
    code = compile(expression.strip(), "<string>", "eval", _WITH_AWAIT)
    if frame_locals is frame.f_globals or not _has_nested_code(code):
        return _run(code, frame, frame.f_globals, frame_locals)
    return _run(code, frame, _merged(frame.f_globals, frame_locals), frame_locals)


def execute(statement, frame, frame_locals):
    """Execute a statement in a frame. The value of an expression is passed to ``sys.displayhook``."""
    code = compile(statement + "\n", "<stdin>", "single", _WITH_AWAIT)
    try:
        if frame_locals is frame.f_globals or not _has_nested_code(code):
            _run(code, frame, frame.f_globals, frame_locals)
        else:
            _execute_merged(code, frame, frame_locals)
    finally:
        if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
            _keep_locals(frame, frame_locals)


def _run(code, frame, global_names, local_names):
    found = call_from(frame, eval, code, global_names, local_names)
    return _await(found, frame) if code.co_flags & _COROUTINE else found


def _await(coroutine, frame):
    """Returns the result of a coroutine while the program is stopped.

    The stopped event loop runs until the coroutine has ended, including its other tasks, as with an ``await`` in the
    program. If no event loop is running, a new one is used. Raises RuntimeError if the loop is not asyncio's.
    """
    import asyncio
    from asyncio import tasks

    loop = asyncio._get_running_loop()
    if loop is None:
        loop = asyncio.new_event_loop()
        try:
            return call_from(frame, loop.run_until_complete, coroutine)
        finally:
            loop.close()
    if not (hasattr(loop, "_run_once") and hasattr(loop, "_ready")):
        coroutine.close()
        raise RuntimeError("await at a stop needs an event loop of asyncio")
    stopped = tasks.current_task(loop)
    waiting = len(loop._ready)
    if stopped is not None:
        tasks._leave_task(loop, stopped)
    task = loop.create_task(coroutine)
    try:
        while not task.done():
            call_from(frame, loop._run_once)
    finally:
        task.cancel()
        # The stopped iteration of the loop counted its callbacks when it began, and must find that number.
        while len(loop._ready) < waiting:
            loop.call_soon(int)
        if stopped is not None:
            tasks._enter_task(loop, stopped)
    return task.result()


def _has_nested_code(code):
    return any(hasattr(constant, "co_code") for constant in code.co_consts)


def _merged(frame_globals, frame_locals):
    merged = dict(frame_globals)
    merged.update(frame_locals)
    return merged


def _execute_merged(code, frame, frame_locals):
    frame_globals = frame.f_globals
    merged = _merged(frame_globals, frame_locals)
    before = dict(merged)
    try:
        _run(code, frame, merged, frame_locals)
    finally:
        absent = object()
        for name, value in merged.items():
            if before.get(name, absent) is not value and name != "__builtins__":
                frame_globals[name] = value


def _keep_locals(frame, frame_locals):
    # The interpreter copies f_locals back only for the frame whose trace function runs, and discards changes as soon
    # as f_locals is read again.
    try:
        import ctypes

        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    except (ImportError, AttributeError):
        return
    if sys.version_info >= (3, 11):
        # PyFrame_LocalsToFast copies only if f_locals has been read since the last copy. f_locals is read here, so that
        # the next call copies.
        kept = dict(frame_locals)
        _ = frame.f_locals
        frame_locals.clear()
        frame_locals.update(kept)
