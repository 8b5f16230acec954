"""Which files a shell line itself runs: whoever may change them decides what the line means.

A single Python program is another matter. It may be the very thing that has to be repaired.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence

_SHELL = re.compile(r"[;&|<>()`$\n]")
_CHANGE_DIRECTORY = re.compile(r"^\s*cd\s+[\w./+-]+\s*&&\s*")
_PYTHON_FIRST = re.compile(r"^\s*(?:\w+=\S*\s+)*(?:env\s+)?(?:\S*/)?(?:python|pypy|pytest|py\.test)[\w.]*(?:\s|$)")
_READ_BY = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "nox": ("noxfile.py",),
}
_INCLUDED_SUFFIX = ".mk"


def files_of_shell_line(entrypoint: str, pristine: Collection[str]) -> list[str]:
    """Paths, new ones too, that ``entrypoint`` names or that a program it names reads by itself.

    Words that end in ``.py`` are left out, and so are directories of the untouched repository.
    """
    rest = _CHANGE_DIRECTORY.sub("", entrypoint)
    if _PYTHON_FIRST.match(rest) and not _SHELL.search(rest):
        return []
    words = _words(entrypoint)
    directories = {above for path in pristine for above in _ancestors(path)}
    places = ["", *(word for word in words if posixpath.normpath(word) in directories)]
    named = [posixpath.normpath(posixpath.join(place, word)) for place in places for word in _programs_and_files(words)]
    if any(posixpath.basename(word) in ("make", "gmake") for word in words):
        named += [path for path in pristine if path.endswith(_INCLUDED_SUFFIX)]
    return sorted(
        {path for path in named if path not in {*directories, ".", ".."} and not path.startswith(("../", "/"))}
    )


def _words(line: str) -> list[str]:
    """The words of a line, and of what it gives to another shell in quotes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        words = line.split()
    inner = [word for word in words if re.search(r"\s", word)]
    return words + [part for word in inner for part in word.split()]


def _programs_and_files(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield from _READ_BY.get(posixpath.basename(word), ())
        if re.fullmatch(r"[\w./+@=-]+", word) and not word.endswith(".py") and not word.startswith("-"):
            yield word


def _ancestors(path: str) -> Iterator[str]:
    parts = path.split("/")[:-1]
    return ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
