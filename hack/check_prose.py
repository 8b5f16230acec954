"""Warns about wordings that are hard to read, in the comments, docstrings, messages and pages of a change.

``python hack/check_prose.py [--base COMMIT]`` reads the lines that differ from COMMIT, by default from the commit where
the branch left ``origin/main``. The exit status is 0: a wording that matches can be right.
"""

import argparse
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PATTERNS = {
    r"\b(?:tells?|told|says?|said|knows?|knew|hears?|heard|wish(?:es)?|wants?|meant|gives? (?:its|his|their) word)\b": (
        "a program does not speak or know: write which part returns, writes, records, reports or requires"
    ),
    r"(?:^|[.:;] )(?:What|Whoever|Whatever|Which) (?!is your)[^?]*$": "begin the sentence with a noun as its subject",
    r"(?:^|[.:;] )(?:Of|Since when|None (?:is|are|of))\b": "write a full sentence: subject, verb, object",
    r"\b(?:is|are|was|were|be|ends? in|ended in|makes?|needs?) no\b|\bThere (?:is|are) no\b": "use 'not'",
    r"\b(?:the|this|that|an?|each|another|every|own|no) (?:one|word|affair|piece|matter)s?\b(?! of)": "name the thing",
}
"""Regular expressions of wordings, and what to write in their place."""
PROSE = {".md", ".yaml", ".yml", ".toml", ".sh", ".j2", ".txt"}
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)")


def warnings(line: str) -> Iterator[tuple[str, str]]:
    """Yield each wording in a line of prose that matches, with the advice."""
    for pattern, advice in PATTERNS.items():
        if found := re.search(pattern, line):
            yield found[0].strip(" .:;"), advice


def prose(path: str, text: str) -> dict[int, str]:
    """Return the lines of a file that people read, by number: all, or the comments and strings of a Python file."""
    if not path.endswith(".py"):
        return dict(enumerate(text.splitlines(), 1))
    lines: dict[int, str] = {}
    middle = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, middle):
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                lines[number] = f"{lines.get(number, '')} {line.strip(' #').strip(chr(34))}".strip()
    return lines


def added(diff: str) -> dict[str, set[int]]:
    """Return the numbers of the added lines of each file, from a diff without context."""
    found: dict[str, set[int]] = {}
    path, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif hunk := _HUNK.match(line):
            number = int(hunk[1])
        elif line.startswith("+"):
            found.setdefault(path, set()).add(number)
            number += 1
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def main(arguments: list[str]) -> int:
    """Print the warnings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", help="the commit to compare with")
    base = parser.parse_args(arguments).base or _git("merge-base", "HEAD", "origin/main").strip() or "HEAD"
    count = 0
    for path, numbers in added(_git("diff", "-U0", "--no-color", "--no-ext-diff", base)).items():
        file = Path(path)
        if file.is_file() and file.suffix in {".py", *PROSE} and path != "hack/check_prose.py":
            lines = prose(path, file.read_text("utf-8"))
            for number in sorted(numbers & lines.keys()):
                for wording, advice in warnings(lines[number]):
                    print(f"{path}:{number}: warning: {wording!r}: {advice}")
                    count += 1
    if count:
        print(f"wordings to read again: {count}; they do not fail the check")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
