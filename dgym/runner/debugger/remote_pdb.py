"""pdb with a channel instead of a terminal: receives commands, sends answers, and filters the stack."""

import importlib
import io
import itertools
import linecache
import os
import pdb  # noqa: T100 - this is one
import reprlib
import sys
import threading
import traceback

from ..descriptors import HeadAndTail
from ..frames import call_from
from . import breakpoints
from .commands import Commands
from .parsing import split_commands
from .tracing import LIBRARY, PROGRAM, Tracing

_CONTEXT = 5
_LINE_CHARACTERS = 500
_LONGEST_CYCLE = 8
_REPETITIONS = 3
START = "<not started>"
_START_TEXT = (
    "%s is about to start: no line of the program has run yet.\n"
    "Set breakpoints and continue with c; n or s stops at the first line of the program's own code."
)


class Answer(io.TextIOBase):
    """Stream that captures the debugger's output up to a limit, until ``take`` is called."""

    encoding = "utf-8"

    def __init__(self, limit):
        self._kept = HeadAndTail(limit)

    def writable(self):
        return True

    def write(self, text):
        self._kept.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def take(self, limit):
        kept, self._kept = self._kept, HeadAndTail(limit)
        return kept.text()


class Debugger(Commands, Tracing, pdb.Pdb):
    """The debugger inside the program.

    This object is also pdb's ``stdin``. Its ``readline`` sends the answer and waits for the next command.
    """

    def __init__(self, channel, limit):
        self.answer = Answer(limit)
        pdb.Pdb.__init__(self, stdin=self, stdout=self.answer, nosigint=True, readrc=False)
        self.use_rawinput = 0
        self.prompt = ""
        self.channel = channel
        self.limit = limit
        self.title = ""
        self.listing = False
        self._location = None  # pdb's lines about the location; not printed if the answer has a source listing
        self._listed_place = None
        self.notices = []
        self.find_hook = None  # function from the name of a pytest hook to a function without arguments, or None
        self.evaluating = None  # the thread in which a command is being evaluated
        self.interacting = False
        self.has_stopped = False
        self._in_workspace = False  # True if a post-mortem skips the frames of libraries
        self.failed = False
        self.shortens = True
        self.last_line = ""
        self._turn = threading.RLock()
        self._modules = set()
        self._files = set()
        self._new_files = []

    # the channel

    def readline(self):
        """Send the answer to the previous command, and wait for the next command."""
        self.evaluating = None
        flush_streams()
        self.channel.send(self._stop())
        message = self.channel.receive()
        if message is None:
            os._exit(1)
        self.limit = message.get("limit", self.limit)
        self.listing = message["listing"]
        if message["first"]:
            self._listed_place = None  # the answer at the program's start was not shown, so its listing is repeated
        self.answer.take(self.limit)
        # Files that the program has not imported may have changed since they were read.
        linecache.checkcache()
        if message.get("breakpoints") is not None:
            self.notices += breakpoints.restore(self, message["breakpoints"], message["next_number"])
        commands = split_commands(message["command"]) or ["p None"]
        self.cmdqueue[:0] = commands[1:]
        self.failed = False
        self.last_line = ""
        return commands[0] + "\n"

    def _stop(self):
        frame, line = self.stack[self.curindex] if self.stack else (None, 0)
        message = {"type": "stop", "frame": None, "source": [], "source_start": 0}
        if frame is not None and frame.f_code.co_filename != START:
            filename = frame.f_code.co_filename
            function = frame.f_code.co_name
            message["frame"] = {"file": self.relative(filename), "line": line or 0, "function": function}
            place = filename, line, function, self.curindex
            if not self.listing or place != self._listed_place:
                start = max((line or 1) - _CONTEXT, 1)
                lines = linecache.getlines(filename, frame.f_globals)[start - 1 : (line or 1) + _CONTEXT]
                message["source"] = [text.rstrip("\r\n")[:_LINE_CHARACTERS] for text in lines]
                message["source_start"] = start if lines else 0
            self._listed_place = place
        moved = self._location is not None
        self._write_location(listed=bool(message["source"]))
        output, cut = self.answer.take(self.limit)
        if not output and not moved:
            output = self.silence() + "\n"
        message.update(self.state(), output=output, cut=cut, failed=self.failed)
        message["lost"] = self._not_restorable()
        return message

    def state(self):
        """Returns the fields of every message to the host: breakpoints, loaded files, notices."""
        notices, self.notices = self.notices, []
        return {
            "breakpoints": breakpoints.report(self),
            "next_number": breakpoints.next_number(),
            "files": self._loaded(),
            "notices": notices,
        }

    def _not_restorable(self):
        lost = ["the commands of breakpoint %d" % number for number in sorted(self.commands) if self.commands[number]]
        if any(self.displaying.values()):
            lost.append("the display expressions")
        return lost

    def _loaded(self):
        """Returns the source files of the workspace that were loaded since the last call, with mtime (ns) and size."""
        for name, module in list(sys.modules.items()):
            if name not in self._modules:
                self._modules.add(name)
                self.record_file(getattr(module, "__dict__", {}).get("__file__"))
        # Files that run by exec, runpy.run_path or pytest's import mode importlib are not in sys.modules.
        traced = set(self.traced_files)
        for filename in traced - self._files:
            self.record_file(filename)
        self._files |= traced
        files, self._new_files = self._new_files, []
        return files

    def record_file(self, filename):
        """Report a file as loaded, if it belongs to the workspace."""
        if not isinstance(filename, str) or self.owners.of(filename) != PROGRAM:
            return
        try:
            found = os.stat(self.canonic(filename))
        except OSError:
            return
        self._new_files.append([self.canonic(filename), found.st_mtime_ns, found.st_size])

    def before_start(self):
        """Returns True if the program is stopped before its first line."""
        return self.curframe is not None and self.curframe.f_code.co_filename == START

    def leave(self, how):
        """Request the host to end this process, and wait for it. ``how`` is "quit" or "restart"."""
        self.channel.send({"type": how})
        while self.channel.receive() is not None:
            pass
        os._exit(1)

    def relative(self, filename):
        """Returns the path of a file, relative to the workspace if it is inside."""
        path = self.canonic(filename)
        prefix = os.path.join(self.workspace, "")
        return path[len(prefix) :] if path.startswith(prefix) else path

    # stops

    def interaction(self, frame, traceback):  # noqa: F811 - pdb's name for it
        """Execute commands at this frame. Only one thread does so at a time; the others wait at their breakpoints."""
        if os.getpid() != self.pid or not self.channel.usable():
            self.detach()
            return
        with self._turn:
            thread = threading.current_thread()
            if thread is not threading.main_thread():
                self.message("--Thread %s--" % thread.name)
            self.interacting = self.has_stopped = True
            try:
                pdb.Pdb.interaction(self, frame, traceback)
            finally:
                self.interacting = False
            if frame is not None:
                self._resume(frame)

    def _cmdloop(self):
        self._announce("pytest_enter_pdb")
        pdb.Pdb._cmdloop(self)
        self._announce("pytest_leave_pdb")

    def _announce(self, name):
        """Call a pytest hook that informs plugins of a stop, so that they do not count its time for the test.

        As during a command, ``breakpoint()`` does not stop, and the signal that interrupts the program ends the hook.
        """
        hook = self.find_hook(name) if self.find_hook is not None else None
        if hook is None:
            return
        self.evaluating = threading.get_ident()
        try:
            call_from(self.curframe, hook)
        except BaseException as error:
            self.notices.append(
                "%s failed: %s" % (name, traceback.format_exception_only(type(error), error)[-1].strip())
            )
        finally:
            self.evaluating = None

    def _resume(self, frame):
        before = frame.f_code.co_filename == START
        if before and self.stoplineno != -1:
            self.set_step()
        self.arm(frame)
        if before:
            self.stopped_at = None

    def stop_before(self, frame):
        """Execute commands before the main module, whose frame is ``frame``, runs its first line."""
        try:
            # The exception provides a new frame that has the module's variables and no caller.
            call_from(None, exec, compile("1/0", START, "exec"), frame.f_globals)
        except ZeroDivisionError as error:
            trace = error.__traceback__
        while trace.tb_next is not None:
            trace = trace.tb_next
        self.interaction(trace.tb_frame, None)

    def post_mortem(self, error, trace, afterwards="ends the program", in_workspace=False):
        """Execute commands at the frame where an exception was raised.

        Args:
            afterwards: Text for the agent about the effect of continuing.
            in_workspace: Select the innermost frame of the workspace, if there is one.
        """
        if os.getpid() != self.pid:
            return
        tracing = sys.gettrace()
        sys.settrace(None)
        self.message("".join(traceback.format_exception_only(type(error), error)).strip())
        self.message("Stopped where this exception was raised (post-mortem); continuing %s." % afterwards)
        self._in_workspace = in_workspace
        self.interaction(None, error if sys.version_info >= (3, 13) and error.__traceback__ is trace else trace)
        if tracing is not None and self.tracing_needed():
            sys.settrace(tracing)

    def set_trace(self, frame=None, **_ignored):
        """Implements ``breakpoint()`` and ``pdb.set_trace()``. Does nothing during a command."""
        if self.evaluating is None:
            Tracing.set_trace(self, frame or sys._getframe().f_back)

    def user_call(self, frame, argument_list):
        # The program stops at the first line of a module, so a stop at its call event would be redundant.
        if frame.f_code.co_name != "<module>":
            pdb.Pdb.user_call(self, frame, argument_list)

    def user_line(self, frame):
        if os.getpid() != self.pid:
            if self.currentbp and frame.f_lineno in self.lines_wanted(frame.f_code):
                self.channel.report_child(self.currentbp)
            self.detach()
        elif self.bp_commands(frame):
            self.interaction(frame, None)
        else:
            self.arm(frame)

    def get_stack(self, f, t):
        """Returns the stack without the debugger's frames and without the frames that called the program."""
        stack = []
        current = t.tb_frame if f is None and t else f
        walk = current.f_back if f is None and current is not None else f
        while walk is not None:
            stack.append((walk, walk.f_lineno))
            walk = walk.f_back
        stack.reverse()
        trace = t.tb_next if t and t.tb_frame is f else t
        raised = []
        while trace is not None:
            raised.append((trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        if f is None:
            current = self._raised_in([frame for frame, _ in raised]) or current
        return self._shown(stack + raised, current)

    def _raised_in(self, frames):
        """Returns the frame of a traceback to select, or None without a frame.

        This is the innermost frame of the program, or of a library unless ``_in_workspace`` is set. Frames with
        ``__tracebackhide__`` are skipped.
        """
        for frame in reversed(frames):
            kind = self.owners.of(frame.f_code.co_filename)
            if kind == PROGRAM or (kind == LIBRARY and not self._in_workspace):
                if not frame.f_locals.get("__tracebackhide__"):
                    return frame
        return frames[-1] if frames else None

    def _shown(self, stack, current):
        kinds = [self.owners.of(frame.f_code.co_filename) for frame, _ in stack]
        if PROGRAM in kinds:
            # A breakpoint in a library may be hit in a caller of the program's first frame. The current frame is
            # always shown.
            first = min(kinds.index(PROGRAM), next(i for i, (frame, _) in enumerate(stack) if frame is current))
            stack, kinds = stack[first:], kinds[first:]
        shown = [entry for entry, kind in zip(stack, kinds) if kind or entry[0] is current] or stack[-1:]  # noqa: B905
        return shown, max(index for index, (frame, _) in enumerate(shown) if frame is current)

    def format_stack_entry(self, frame_lineno, lprefix=": "):
        frame, line = frame_lineno
        filename = frame.f_code.co_filename
        text = "%s(%r)%s()" % (self.relative(filename), line, frame.f_code.co_name or "<lambda>")
        # Before 3.13, reading f_locals would discard the agent's assignments, so pdb's copy is read.
        values = self.values() if frame is self.curframe else ()
        if "__return__" in values:
            text += "->" + reprlib.repr(values["__return__"])
        source = linecache.getline(filename, line or 0, frame.f_globals).strip()
        return text + lprefix + source if source else text

    def print_stack_entry(self, frame_lineno, prompt_prefix="\n-> "):
        self._write_location()
        if frame_lineno[0].f_code.co_filename == START:
            self.message(_START_TEXT % self.title)
        elif self.listing and frame_lineno[0] is self.curframe:
            self._location = "> " + self.format_stack_entry(frame_lineno, prompt_prefix)
        else:
            pdb.Pdb.print_stack_entry(self, frame_lineno, prompt_prefix)

    def _write_location(self, listed=False):
        """Write pdb's lines about the last location. With ``listed``, write only what the source listing lacks."""
        text, self._location = self._location, None
        if text is None:
            return
        if not listed:
            self.message(text)
        elif "__return__" in self.values():
            self.message(text.partition("\n-> ")[0])

    def print_stack_trace(self):
        hidden = folded([frame for frame, _ in self.stack], [line for _, line in self.stack])
        hidden.pop(self.curindex, None)
        for why, entries in itertools.groupby(enumerate(self.stack), lambda entry: hidden.get(entry[0])):
            entries = list(entries)
            if why:
                self.message("  [... %d frames %s ...]" % (len(entries), why))
            for _, entry in [] if why else entries:
                pdb.Pdb.print_stack_entry(self, entry)


def folded(frames, lines):
    """Returns the frames that a stack trace omits: repetitions and the import system.

    Returns:
        A dict from the index of a frame to the reason.
    """
    keys = list(zip((id(frame.f_code) for frame in frames), lines))  # noqa: B905
    hidden = {}
    index = 0
    while index < len(keys):
        length, times = _repetition(keys, index)
        # The first and the last repetition are shown.
        hidden.update(dict.fromkeys(range(index + length, index + length * (times - 1)), "repeat the same lines"))
        index += length * times
    for index, frame in enumerate(frames):
        if frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_filename == importlib.__file__:
            hidden[index] = "of the import system"
    return hidden


def _repetition(keys, index):
    """Returns ``(length, times)`` of the shortest sequence that repeats from ``index`` on, or ``(1, 1)``."""
    for length in range(1, _LONGEST_CYCLE + 1):
        times = 1
        while keys[index : index + length] == keys[index + times * length : index + (times + 1) * length]:
            times += 1
        if times > _REPETITIONS:
            return length, times
    return 1, 1


def flush_streams():
    """Flush the program's streams, so that the host reads their output before the answer."""
    for stream in {id(s): s for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)}.values():
        try:
            stream.flush()
        except Exception:  # noqa: S110 - closed or replaced by the program
            pass
