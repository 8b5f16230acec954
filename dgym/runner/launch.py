"""Parses an entrypoint, so that the same program can be started under a debugger or a wrapper.

Accepted are ``NAME=value`` prefixes, a Python interpreter with flags and a script or ``-m module``, and programs whose
first line names a Python interpreter (console scripts such as ``pytest``). Any other entrypoint may run in a shell, but
cannot be debugged as a single Python program.
"""

import glob
import os
import re
import shlex

from .files import find_program

_ADVICE = (
    "set debugEntrypoint (or the entrypoint argument) to a command such as 'python -m pytest -q' or 'python app.py'"
)
_SHELL_WORDS = frozenset(
    ". : ! [ [[ { alias builtin case cd command declare eval exec export for function hash if local pushd "
    "read readonly return select set shopt source test time trap ulimit umask unset until wait while".split()
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*[a-z]*$")
_PYTEST = re.compile(r"(pytest|py\.test)(-?[0-9.]+)?$")
_FLAGS = "bBdEIOPqRsSuv"
_FLAGS_WITH_VALUE = "WX"
_OPERATORS = {";": ";", "&": "&", "|": "|", "<": "<", ">": ">", "(": "(", ")": ")", "\n": "a second line"}
_EXPANSIONS = {"$": "$ expansion", "`": "command substitution"}


class LaunchRefused(ValueError):
    """The entrypoint is not a single Python program. The message contains the reason and a remedy.

    Attributes:
        needs_shell: True if a shell can run the entrypoint, which may then start a Python program.
    """

    def __init__(self, message, needs_shell=False):
        super().__init__(message)
        self.needs_shell = needs_shell


class Launch(object):
    """How to start a Python program.

    Attributes:
        python: Absolute path of the interpreter.
        env: Additional environment variables.
        flags: Flags of the interpreter.
        kind: "script" or "module".
        target: Path of the script or name of the module.
        argv: Arguments of the program.
        notices: Sentences that describe how the program differs from the entrypoint.
        is_pytest: True if the program is pytest.
    """

    def __init__(self, python, env, flags, kind, target, argv, notices=()):
        self.python = python
        self.env = env
        self.flags = flags
        self.kind = kind
        self.target = target
        self.argv = argv
        self.notices = notices
        name = os.path.basename(target) if kind == "script" else target
        self.is_pytest = bool(_PYTEST.match(name)) or (kind == "module" and target == "pytest.__main__")

    def command(self):
        """Returns the command line of the program, which is its ``sys.orig_argv``."""
        target = ["-m", self.target] if self.kind == "module" else [self.target]
        return [self.python] + self.flags + target + self.argv

    def fields(self):
        """Returns the fields that are sent to the process that runs the program."""
        return {
            "kind": self.kind,
            "target": self.target,
            "argv": list(self.argv),
            "orig_argv": self.command(),
            "is_pytest": self.is_pytest,
            "notices": list(self.notices),
        }


def parse_entrypoint(text, env, cwd):
    """Returns the ``Launch`` of an entrypoint in directory ``cwd`` with environment ``env``; raises LaunchRefused."""
    try:
        words = split_words(text, cwd)
    except NeedsShell as needed:
        raise refusal(text, "it needs a shell (%s)" % needed, needs_shell=True)
    extra, words = _assignments(words)
    if words[:1] == ["env"]:
        more, words = _assignments(words[1:])
        extra.update(more)
        if words and words[0].startswith("-"):
            raise refusal(text, "env's option %s is not supported" % words[0], needs_shell=True)
    if not words:
        raise refusal(text, "it names no program")
    command, rest = words[0], words[1:]
    if command in _SHELL_WORDS:
        raise refusal(text, "it needs a shell (%s)" % command, needs_shell=True)
    found = find_program(command, dict(env, **extra), cwd)
    if found is None:
        raise refusal(text, "%s was not found on PATH" % command)
    return parse_program(text, command, found, rest, dict(env, **extra), cwd, extra)


def parse_program(text, command, found, arguments, env, cwd, extra=None):
    """Returns the ``Launch`` of ``command``, which is the file ``found``; raises LaunchRefused."""
    if is_interpreter(command):
        return parse_interpreter(text, found, arguments, extra)
    python, flags = _shebang(text, command, found, env, cwd)
    return Launch(python, extra or {}, flags, "script", found, arguments)


def parse_interpreter(text, python, arguments, extra=None):
    """Returns the ``Launch`` of an interpreter with these arguments; raises LaunchRefused."""
    flags, kind, target, argv = _interpreter_arguments(text, arguments)
    return Launch(python, extra or {}, flags, kind, target, argv)


def is_interpreter(command):
    """Returns True if the command's name is that of a Python interpreter."""
    return bool(_INTERPRETER.match(os.path.basename(command)))


def refusal(text, why, needs_shell=False):
    """Returns the error for an entrypoint that cannot be debugged."""
    return LaunchRefused("%r cannot be debugged: %s; %s" % (text, why, _ADVICE), needs_shell)


def _assignments(words):
    extra = {}
    for index, word in enumerate(words):
        if not _ASSIGNMENT.match(word):
            return extra, words[index:]
        name, _, value = word.partition("=")
        extra[name] = value
    return extra, []


def _interpreter_arguments(text, words):
    flags = []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return flags, "script", word, words
        module = _read_flag(text, word, words, flags)
        if module is not None:
            return flags, "module", module, words
    raise refusal(text, "it names no script and no module")


def _read_flag(text, word, words, flags):
    """Append the flags of ``word`` to ``flags``. For ``-m``, returns the module's name, else None."""
    if word == "-" or word.startswith("--"):
        raise refusal(text, "%s is not supported" % word)
    for index, letter in enumerate(word[1:], 1):
        attached = word[index + 1 :]
        if letter == "m" or letter in _FLAGS_WITH_VALUE:
            if not attached and not words:
                raise refusal(text, "-%s needs a value" % letter)
            value = attached or words.pop(0)
            if letter == "m":
                return value
            flags.extend(["-" + letter, value])
            return None
        if letter not in _FLAGS:
            raise refusal(text, "the interpreter's -%s is not supported" % letter)
        flags.append("-" + letter)
    return None


def _shebang(text, command, path, env, cwd):
    """Returns the interpreter and the flags in a script's first line."""
    with open(path, "rb") as stream:
        head = stream.read(1024).decode("utf-8", "replace").splitlines()
    first = head[0] if head else ""
    if first.startswith("#!") and os.path.basename(first[2:].strip()) == "sh" and len(head) > 1:
        # Installers write this line if the interpreter's path is too long or has blanks: '''exec' "/path/python" "$0" …
        match = re.match(r"'''exec'\s+(\"[^\"]+\"|\S+)\s", head[1])
        first = "#!" + match.group(1) if match else first
    try:
        words = shlex.split(first[2:]) if first.startswith("#!") else []
    except ValueError:
        words = []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words or not _INTERPRETER.match(os.path.basename(words[0])):
        why = "%s is not a Python program (its first line names no Python interpreter)" % command
        raise refusal(text, why, needs_shell=True)
    python = find_program(words[0], env, cwd)
    if python is None:
        raise refusal(text, "its interpreter %s was not found" % words[0])
    flags = []
    for word in words[1:]:
        _read_flag(text, word, [], flags)
    return python, flags


class NeedsShell(ValueError):
    """The command uses a feature of the shell; the message names it."""


def split_words(text, cwd):
    """Returns the words of the command, with ``~`` and file patterns expanded as in a shell; raises NeedsShell.

    ``shlex`` does not distinguish a quoted ``$x`` or ``*`` from an unquoted ``$x`` or ``*``. A command can be started
    without a shell only if ``$x`` is quoted.
    """
    return _Scanner(text.strip(), cwd).words()


class _Scanner(object):
    def __init__(self, text, cwd):
        self._text = text
        self._cwd = cwd
        self._at = 0
        self._words = []
        self._start()

    def _start(self):
        self._word = ""
        self._pattern = ""
        self._open = False
        self._globs = False

    def words(self):
        while self._at < len(self._text):
            char = self._text[self._at]
            self._at += 1
            self._take(char)
        self._finish()
        return self._words

    def _take(self, char):
        if char in _OPERATORS or char in _EXPANSIONS:
            raise NeedsShell(_OPERATORS.get(char) or _EXPANSIONS[char])
        if char in " \t":
            self._finish()
        elif char == "#" and not self._open:
            raise NeedsShell("a comment")
        elif char in "'\"":
            self._quoted(char)
        elif char == "\\":
            self._add(self._next("a backslash at the end"), plain=False)
        else:
            self._add(char, plain=True)

    def _next(self, what):
        if self._at >= len(self._text):
            raise NeedsShell(what)
        self._at += 1
        return self._text[self._at - 1]

    def _quoted(self, quote):
        self._open = True
        while True:
            char = self._next("an unclosed quote")
            if char == quote:
                return
            if quote == '"' and char in _EXPANSIONS:
                raise NeedsShell(_EXPANSIONS[char])
            if quote == '"' and char == "\\":
                following = self._next("an unclosed quote")
                if following not in '"\\$`':
                    self._add("\\", plain=False)
                char = following
            self._add(char, plain=False)

    def _add(self, char, plain):
        if plain and char == "~" and not self._open:
            char = os.path.expanduser("~")
        self._open = True
        self._globs = self._globs or (plain and char in "*?[")
        self._word += char
        self._pattern += char if plain else glob.escape(char)

    def _finish(self):
        if self._open:
            found = self._matches() if self._globs else []
            self._words.extend(found or [self._word])
        self._start()

    def _matches(self):
        if os.path.isabs(self._pattern):
            return sorted(glob.glob(self._pattern))
        prefix = os.path.join(glob.escape(self._cwd), "")
        return sorted(path[len(os.path.join(self._cwd, "")) :] for path in glob.glob(prefix + self._pattern))
