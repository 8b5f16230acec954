"""Render pages as HTML. The server and the exported bundle use the same templates.

Output of programs is converted: terminal colours, diffs and escaped text.
"""

import base64
import functools
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup, escape

from dgym.agents import message_parts
from dgym.llm import Message
from dgym.results import FILES, LOG, PATCH, RESULT, TRAJECTORY, EpisodeEntry, Library, StoredResult, decode_result
from dgym.terminal import printable
from dgym.ui._listing import (
    FILTERS,
    PAGE_ROWS,
    Query,
    Side,
    choices,
    compare_episodes,
    compare_runs,
    cost,
    overviews,
    sides_of,
    tokens,
    value_of,
)
from dgym.ui._trajectories import READ_BYTES, Story, Turn, collect_knowledge, read_story, stage_bar, step_strip

HOME, EPISODES, COMPARE, PAIR = "index.html", "episodes.html", "compare.html", "pair.html"
STEPS_SHOWN = 100
"""Maximum number of steps on one page of an episode."""
_PAIR_LINES = 300
_LOG_BYTES = 4 * 1024**2
_RESULT_BYTES = 32 * 1024**2
_PATCH_CHARACTERS = 512 * 1024
_BEGINNING = 120
"""Maximum number of characters in the summary line of a message."""
_TESTS_SHOWN = 2_000
SHOWN_CHARACTERS = 96 * 1024
"""Maximum number of characters of one text in a page. Observations of dgym have at most 64 KiB."""
_COLOUR_CHANGES = 4_000
_SGR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_BASIC = {30: 0, 40: 0, 90: 8, 100: 8}


class Links:
    """Links from a page to other pages. A method returns None if the page does not exist.

    This base class is for a single page without other pages.
    """

    live = False
    """Whether pages are rendered on request. Then lists can be filtered and sorted, and pages can follow episodes."""

    def home(self) -> str | None:
        """The page of runs."""
        return None

    def episodes(self, parameters: Mapping[str, str]) -> str | None:  # noqa: ARG002 - for a page with neighbours
        """A list of episodes."""
        return None

    def episode(self, entry: EpisodeEntry, parameters: Mapping[str, str] | None = None, anchor: str = "") -> str | None:  # noqa: ARG002
        """An episode. ``parameters`` may contain an attempt, a step, and the list from which it was opened."""
        return f"#{anchor}" if anchor else None

    def compare(self, parameters: Mapping[str, str]) -> str | None:  # noqa: ARG002
        """The comparison of two runs."""
        return None

    def pair(self, a: EpisodeEntry, b: EpisodeEntry) -> str | None:  # noqa: ARG002
        """The comparison of two episodes."""
        return None

    def file(self, entry: EpisodeEntry, attempt: int, name: str) -> str | None:  # noqa: ARG002
        """A stored file of an attempt."""
        return None


def path_of(entry: EpisodeEntry) -> str:
    """The entry's path as part of a URL. Bytes that are not UTF-8 are kept."""
    return quote(entry.path, errors="surrogateescape")


class Pages:
    """Renders the pages of a library. ``links`` creates their URLs."""

    def __init__(self, library: Library, links: Links) -> None:
        self._library = library
        self._links = links
        self._environment = _environment()
        self._choices_of: object = None
        self._chosen: dict[str, list[str]] = {}

    def home(self) -> str:
        """The page of runs and sets."""
        return self._render("home.html.j2", title="Runs", overviews=overviews(self._library))

    def episodes(self, query: Query) -> str:
        """A page of a list of episodes."""
        entries = self._library.entries.values()
        selected = query.select(entries)
        pages = max(1, -(-len(selected) // PAGE_ROWS))
        page = min(query.page, pages)
        query = msgspec.structs.replace(query, page=page)
        return self._render(
            "episodes.html.j2",
            title=" · ".join(value for _, value in query.filters) or "Episodes",
            query=query,
            rows=selected[(page - 1) * PAGE_ROWS : page * PAGE_ROWS],
            found=len(selected),
            pages=pages,
            choices=self._choices(),
            has_runs=any(entry.run for entry in entries),
        )

    async def episode(
        self, entry: EpisodeEntry, parameters: Mapping[str, str], *, steps_shown: int | None = STEPS_SHOWN
    ) -> str:
        """A page of an attempt with the steps from the parameter ``step`` on.

        ``steps_shown`` is the maximum number of steps. None shows all steps of the attempt.
        """
        attempt = attempt_of(entry, parameters)
        story = await self.story(entry, attempt)
        result = await self._result(entry, attempt)
        query = Query.parse(parameters)
        first = 0 if steps_shown is None else _first_shown(parameters, story)
        turns = story.turns[first:][:steps_shown]
        requests = story.requests()
        before, after = self._neighbours(entry, query)
        return self._render(
            "episode.html.j2",
            title=entry.about.episode or entry.path,
            entry=entry,
            attempt=attempt,
            story=story,
            turns=turns,
            requests=requests,
            messages=requests.messages(turns),
            first=first,
            known=collect_knowledge(story.turns),
            result=result,
            tests=list(result.tests.items())[:_TESTS_SHOWN] if result is not None else [],
            stages=stage_bar(story, result),
            strip=step_strip(story.turns, self._step_link(entry, attempt, query)),
            patch=await self._text(entry, attempt, PATCH, _PATCH_CHARACTERS),
            log=await self._text(entry, attempt, LOG, _LOG_BYTES),
            files=[(name, self._links.file(entry, attempt, name)) for name in FILES],
            query=query,
            before=before,
            after=after,
            step_link=self._step_link(entry, attempt, query),
            ongoing=not entry.finished and attempt == entry.attempts[-1],
        )

    def _choices(self) -> dict[str, list[str]]:
        """The values by which lists can be filtered, cached until the index changes."""
        entries = self._library.entries
        if self._choices_of is not entries:
            self._choices_of = entries
            self._chosen = {name: choices(entries.values(), name) for name in FILTERS}
        return self._chosen

    def compare(self, a: Side, b: Side, others: Sequence[tuple[Side, Side]] = ()) -> str:
        """The comparison of two sides, by default the first two of ``sides_of``."""
        entries = self._library.entries.values()
        sides = sides_of(entries)
        if not a.filters and not b.filters and len(sides) > 1:
            a, b = sides[:2]
        compared = compare_runs(a.select(entries), b.select(entries)) if a.filters or b.filters else None
        linked = [(f"{x.label} / {y.label}", self._links.compare({"a": x.key, "b": y.key})) for x, y in others]
        about = {"sides": sides, "a": a, "b": b, "compared": compared, "others": linked, "follows": False}
        return self._render("compare.html.j2", title="Compare", **about)

    async def pair(self, a: EpisodeEntry, b: EpisodeEntry) -> str:
        """The newest attempts of two episodes side by side."""
        stories = [await self.story(entry, entry.attempts[-1]) for entry in (a, b)]
        compared = compare_episodes(*stories)
        return self._render(
            "pair.html.j2",
            title="Step by step",
            a=a,
            b=b,
            compared=compared,
            lines=compared.lines[:_PAIR_LINES],
            more=max(0, len(compared.lines) - _PAIR_LINES),
            steps_shown=STEPS_SHOWN,
            follows=False,
        )

    async def story(self, entry: EpisodeEntry, attempt: int) -> Story:
        """The trajectory of an attempt."""
        return read_story(await self._library.read(entry, attempt, TRAJECTORY, READ_BYTES))

    async def _result(self, entry: EpisodeEntry, attempt: int) -> StoredResult | None:
        data = await self._library.read(entry, attempt, RESULT, _RESULT_BYTES)
        return None if data is None else decode_result(data)

    async def _text(self, entry: EpisodeEntry, attempt: int, name: str, limit: int) -> str:
        data = await self._library.read(entry, attempt, name, limit)
        return "" if data is None else data.decode("utf-8", "replace")

    def _step_link(self, entry: EpisodeEntry, attempt: int, query: Query) -> "_StepLink":
        return _StepLink(self._links, entry, attempt, query)

    def _neighbours(self, entry: EpisodeEntry, query: Query) -> tuple[EpisodeEntry | None, EpisodeEntry | None]:
        """The previous and the next episode in the list from which this one was opened."""
        listed = query.select(self._library.entries.values())
        paths = [each.path for each in listed]
        if entry.path not in paths:
            return None, None
        index = paths.index(entry.path)
        return (listed[index - 1] if index else None, listed[index + 1] if index + 1 < len(listed) else None)

    def _render(self, template: str, **values: Any) -> str:
        shared = {"links": self._links, "library": self._library, "assets": assets(), "follows": True}
        return self._environment.get_template(template).render(**{**shared, **values})


class _StepLink:
    """Creates the URL of a step: the page of the episode that shows the step."""

    def __init__(self, links: Links, entry: EpisodeEntry, attempt: int, query: Query) -> None:
        self._links = links
        self._entry = entry
        self._parameters = query.parameters(page="")
        if attempt != entry.attempts[-1]:
            self._parameters["attempt"] = str(attempt)

    def __call__(self, seq: int) -> str | None:
        page = {"step": str(seq)} if seq >= STEPS_SHOWN else {}
        return self._links.episode(self._entry, {**self._parameters, **page}, f"step-{seq}")


def attempt_of(entry: EpisodeEntry, parameters: Mapping[str, str]) -> int:
    """The attempt in the parameters of a URL. The newest attempt if it is missing or does not exist."""
    wanted = parameters.get("attempt", "")
    return next((number for number in entry.attempts if str(number) == wanted), entry.attempts[-1])


def _first_shown(parameters: Mapping[str, str], story: Story) -> int:
    wanted = parameters.get("step", "0")
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 9 else 0
    return min(number, max(0, len(story.turns) - 1)) // STEPS_SHOWN * STEPS_SHOWN


class Assets(msgspec.Struct, frozen=True):
    """The style sheet and the script of every page, and the content security policy that allows only these two."""

    style: Markup
    script: Markup
    policy: str


@functools.cache
def assets() -> Assets:
    """The assets of the package."""
    files = resources.files("dgym.ui") / "static"
    style, script = ((files / name).read_text("utf-8") for name in ("ui.css", "ui.js"))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'self'"
    )
    return Assets(Markup(style), Markup(script), policy)  # noqa: S704 - both are files of this package


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dgym.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ansi": lambda text: terminal_text(clipped(text)),
        "diff": lambda text: diff_text(clipped(text, _PATCH_CHARACTERS)),
        "observed": observed,
        "parts": lambda message: [(name, plain(clipped(text))) for name, text in message_parts(message)],
        "beginning": beginning,
        "duration": duration,
        "moment": moment,
        "number": lambda value: f"{value:,}",
        "pretty": pretty,
        "builtins": msgspec.to_builtins,
        "cost": lambda entry: "" if (known := cost(entry)) is None else f"{known:.4g}",
        "tokens": tokens,
        "value_of": value_of,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Applied to every value that a template prints: replaces deceptive characters, and prints None as empty text."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def observed(turn: Turn) -> Markup:
    """The text of an observation. A diff in the text is highlighted."""
    text = clipped(turn.observation.text)
    diff = turn.observation.diff
    if diff and diff in text:
        before, _, after = text.partition(diff)
        return terminal_text(before) + diff_text(diff) + terminal_text(after)
    return debugger_text(text) if turn.tool == "pdb" else terminal_text(text)


def beginning(message: Message) -> str:
    """The beginning of a message as one line."""
    text = "  ".join(f"{name} {part[:_BEGINNING]}" for name, part in message_parts(message))
    return " ".join(text.split())[:_BEGINNING]


def pretty(value: Any) -> Markup:
    """A value as indented JSON."""
    return plain(clipped(json.dumps(value, indent=2, ensure_ascii=False, default=repr)))


def duration(seconds: float | None) -> str:
    """A duration for people, such as ``850 ms``, ``12.3 s``, ``4:05`` or ``3:10:00``."""
    if seconds is None or not 0 <= seconds < 1e9:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def moment(seconds: float) -> str:
    """Seconds since the epoch as local date and time."""
    if not 0 < seconds < 1e11:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def plain(text: str) -> Markup:
    """``text`` escaped for HTML. Control characters and deceptive characters are replaced (see ``printable``)."""
    return escape(printable(text))


def clipped(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """``text`` shortened to about ``limit`` characters. Beginning and end are kept, and the cut is marked."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters are left out here …]\n{text[-half:]}"


def terminal_text(text: str) -> Markup:
    """Output of a program with its colours. Other terminal control sequences are shown as escapes."""
    parts: list[Markup] = []
    style: frozenset[str] = frozenset()
    position = 0
    for number, match in enumerate(_SGR.finditer(text)):
        if number >= _COLOUR_CHANGES:
            break
        parts.append(_span(text[position : match.start()], style))
        style = _changed(style, match[1])
        position = match.end()
    parts.append(_span(text[position:], style))
    return Markup("").join(parts)


def _span(text: str, style: frozenset[str]) -> Markup:
    if not text or not style:
        return plain(text)
    return Markup('<span class="{}">{}</span>').format(" ".join(sorted(style)), plain(text))


def _changed(style: frozenset[str], parameters: str) -> frozenset[str]:
    """The classes after a Select Graphic Rendition sequence (ECMA-48, 8.3.117)."""
    codes = iter([int(part) if part.isdecimal() else 0 for part in re.split("[;:]", parameters)])
    for code in codes:
        if code == 0:
            style = frozenset()
        elif code in (38, 48):
            colour = _extended(codes)
            style = _with_colour(style, "f" if code == 38 else "b", colour)
        elif code in (39, 49):
            style = _with_colour(style, "f" if code == 39 else "b", None)
        elif code in _EFFECTS:
            style |= {_EFFECTS[code]}
        elif code in _ENDS:
            style -= _ENDS[code]
        else:
            base = code // 10 * 10
            if base in _BASIC and code % 10 < 8:
                style = _with_colour(style, "f" if base in (30, 90) else "b", _BASIC[base] + code % 10)
    return style


_EFFECTS = {1: "bold", 2: "dim", 3: "ital", 4: "under", 7: "inv", 9: "strike"}
"""Concealed (8) and blinking (5) text is deliberately not supported."""

_ENDS = {
    22: frozenset({"bold", "dim"}),
    23: frozenset({"ital"}),
    24: frozenset({"under"}),
    27: frozenset({"inv"}),
    29: frozenset({"strike"}),
}


def _with_colour(style: frozenset[str], ground: str, colour: int | None) -> frozenset[str]:
    rest = frozenset(name for name in style if not re.fullmatch(rf"{ground}\d+", name))
    return rest if colour is None else rest | {f"{ground}{colour}"}


def _extended(codes: Iterator[int]) -> int | None:
    """The nearest of the 16 basic colours to a 256-colour or RGB parameter. None for other parameters."""
    kind = next(codes, None)
    if kind == 5:
        number = next(codes, 0)
        if number < 16:
            return number
        if number < 232:
            return _nearest((number - 16) // 36 * 51, (number - 16) // 6 % 6 * 51, (number - 16) % 6 * 51)
        return _nearest(*[(number - 232) * 10 + 8] * 3) if number < 256 else None
    if kind == 2:
        return _nearest(next(codes, 0), next(codes, 0), next(codes, 0))
    return None


def _nearest(red: int, green: int, blue: int) -> int:
    bright = 8 if max(red, green, blue) > 191 else 0
    bits = sum(bit for bit, part in ((1, red), (2, green), (4, blue)) if part > 95)
    return bits + bright


def diff_text(text: str) -> Markup:
    """A unified diff in which each line has the class of its kind."""
    return Markup("").join(_diff_line(line) for line in _lines(text))


def _lines(text: str) -> list[str]:
    r"""The lines with their endings. Only ``\n`` ends a line."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _diff_line(line: str) -> Markup:
    if line.startswith(("+++", "---", "diff ", "index ")):
        kind = "meta"
    else:
        kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
    return _block(kind, plain(line.removesuffix("\n"))) if kind else plain(line)


def _block(kind: str, line: Markup) -> Markup:
    """A line as a block element, so it needs no newline."""
    return Markup('<span class="{}">{}</span>').format(kind, line or Markup(" "))


_STOP = re.compile(r"B\s*\d+\s{2}")

_LISTED = re.compile(r"\d+\s{2}")


def debugger_text(text: str) -> Markup:
    """Output of pdb in which the current line and lines with breakpoints are highlighted."""
    return Markup("").join(_debugger_line(line) for line in _lines(text))


def _debugger_line(line: str) -> Markup:
    arrow = line.startswith(("->", ">>"))
    rest = line[2 * arrow :].lstrip()
    stop = _STOP.match(rest) is not None
    kind = "here" if arrow and (stop or _LISTED.match(rest)) else "stop" if stop else ""
    return _block(kind, terminal_text(line.removesuffix("\n"))) if kind else terminal_text(line)
