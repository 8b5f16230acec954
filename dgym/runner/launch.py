"""Understands an entrypoint well enough to start the same program under a debugger or a wrapper.

Accepted: ``NAME=value`` prefixes, a Python interpreter with flags, a script or ``-m module``, and programs whose first
line names a Python interpreter (console scripts such as ``pytest``). Whatever else an entrypoint may be runs well in a
shell, but there is no single Python program in it to debug.
"""

import os
import re
import shlex

from .launch_words import NeedsShell, split_words

_ADVICE = (
    "set debugEntrypoint (or the entrypoint argument) to a command such as 'python -m pytest -q' or 'python app.py'"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*[a-z]*$")
_PYTEST = re.compile(r"(pytest|py\.test)(-?[0-9.]+)?$")
_FLAGS = "bBdEIOPqRsSuv"
_FLAGS_WITH_VALUE = "WX"


class LaunchRefused(ValueError):
    """The entrypoint is not one Python program; the message says why and what to do."""


class Launch(object):
    """One Python program: ``python`` (absolute), extra ``env``, interpreter ``flags``, ``kind`` ("script" or
    "module"), ``target`` (the script's path or the module's name), ``argv`` (its arguments), ``is_pytest``.
    """

    def __init__(self, python, env, flags, kind, target, argv):
        self.python = python
        self.env = env
        self.flags = flags
        self.kind = kind
        self.target = target
        self.argv = argv
        name = os.path.basename(target) if kind == "script" else target
        self.is_pytest = bool(_PYTEST.match(name)) or (kind == "module" and target == "pytest.__main__")


def parse_entrypoint(text, env, cwd):
    """The program that ``text`` starts in directory ``cwd`` with environment ``env``; or LaunchRefused."""
    try:
        words = split_words(text, cwd)
    except NeedsShell as needed:
        raise _refusal(text, "it needs a shell (%s)" % needed)
    extra, words = _assignments(words)
    if words[:1] == ["env"]:
        more, words = _assignments(words[1:])
        extra.update(more)
    if not words:
        raise _refusal(text, "it names no program")
    command, rest = words[0], words[1:]
    found = _find(command, dict(env, **extra), cwd)
    if found is None:
        raise _refusal(text, "%s was not found on PATH" % command)
    if _INTERPRETER.match(os.path.basename(command)):
        flags, kind, target, argv = _interpreter_arguments(text, rest)
        return Launch(found, extra, flags, kind, target, argv)
    python, flags = _shebang(text, command, found, dict(env, **extra), cwd)
    return Launch(python, extra, flags, "script", found, rest)


def _refusal(text, why):
    return LaunchRefused("%r cannot be debugged: %s; %s" % (text, why, _ADVICE))


def _assignments(words):
    extra = {}
    for index, word in enumerate(words):
        if not _ASSIGNMENT.match(word):
            return extra, words[index:]
        name, _, value = word.partition("=")
        extra[name] = value
    return extra, []


def _find(command, env, cwd):
    if "/" in command:
        candidates = [command]
    else:
        candidates = [os.path.join(directory, command) for directory in env.get("PATH", os.defpath).split(os.pathsep)]
    for candidate in candidates:
        path = os.path.normpath(os.path.join(cwd, candidate))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


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
    raise _refusal(text, "it names no script and no module")


def _read_flag(text, word, words, flags):
    """Move one flag to ``flags``; the module's name when it is ``-m``."""
    if word == "-" or word.startswith("--"):
        raise _refusal(text, "%s is not supported" % word)
    for index, letter in enumerate(word[1:], 1):
        attached = word[index + 1 :]
        if letter == "m" or letter in _FLAGS_WITH_VALUE:
            if not attached and not words:
                raise _refusal(text, "-%s needs a value" % letter)
            value = attached or words.pop(0)
            if letter == "m":
                return value
            flags.extend(["-" + letter, value])
            return None
        if letter not in _FLAGS:
            raise _refusal(text, "the interpreter's -%s is not supported" % letter)
        flags.append("-" + letter)
    return None


def _shebang(text, command, path, env, cwd):
    """The interpreter and flags that a script's first line names."""
    with open(path, "rb") as stream:
        head = stream.read(1024).decode("utf-8", "replace").splitlines()
    first = head[0] if head else ""
    if first.startswith("#!") and os.path.basename(first[2:].strip()) == "sh" and len(head) > 1:
        # What installers write when the interpreter's path is too long or has blanks: '''exec' "/path/python" "$0" …
        match = re.match(r"'''exec'\s+(\"[^\"]+\"|\S+)\s", head[1])
        first = "#!" + match.group(1) if match else first
    try:
        words = shlex.split(first[2:]) if first.startswith("#!") else []
    except ValueError:
        words = []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words or not _INTERPRETER.match(os.path.basename(words[0])):
        raise _refusal(text, "%s is not a Python program (its first line names no Python interpreter)" % command)
    python = _find(words[0], env, cwd)
    if python is None:
        raise _refusal(text, "its interpreter %s was not found" % words[0])
    flags = []
    for word in words[1:]:
        _read_flag(text, word, [], flags)
    return python, flags
