"""Splits one simple shell command into words, and refuses whatever only a shell could run.

``shlex`` cannot tell a quoted ``$x`` or ``*`` from a plain one, and that difference decides whether the command may be
started without a shell.
"""

import glob
import os

_OPERATORS = {";": ";", "&": "&", "|": "|", "<": "<", ">": ">", "(": "(", ")": ")", "\n": "a second line"}
_EXPANSIONS = {"$": "$ expansion", "`": "command substitution"}


class NeedsShell(ValueError):
    """The command uses something that only a shell does; the message names it."""


def split_words(text, cwd):
    """The words of the command, with ``~`` and file patterns expanded as a shell would."""
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
