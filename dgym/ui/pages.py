"""Pages as HTML. The server and the exported bundle render them with the same templates."""

import base64
import functools
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from dgym.agents import message_parts
from dgym.llm import Message
from dgym.results import FILES, LOG, PATCH, RESULT, StoredResult, decode_result
from dgym.terminal import printable
from dgym.ui.comparing import Side, compare_episodes, compare_runs, sides_of
from dgym.ui.library import Entry, Library
from dgym.ui.links import Links
from dgym.ui.listing import FILTERS, PAGE_ROWS, Query, choices, cost, overviews, tokens, value_of
from dgym.ui.markup import clipped, debugger_text, diff_text, plain, terminal_text
from dgym.ui.timeline import stage_bar, step_strip
from dgym.ui.trajectories import READ_BYTES, Story, Turn, knowledge, read_story

STEPS_SHOWN = 100
"""Steps in one page of an episode."""
_PAIR_LINES = 300
_LOG_BYTES = 4 * 1024**2
_RESULT_BYTES = 32 * 1024**2
_PATCH_CHARACTERS = 512 * 1024
_BEGINNING = 120
"""Characters of a message that its line shows."""
_TESTS_SHOWN = 2_000


class Pages:
    """Renders the pages of a library; ``links`` makes their addresses."""

    def __init__(self, library: Library, links: Links) -> None:
        self._library = library
        self._links = links
        self._environment = _environment()
        self._choices_of: object = None
        self._chosen: dict[str, list[str]] = {}

    def home(self) -> str:
        """Runs and sets."""
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
        self, entry: Entry, parameters: Mapping[str, str], *, steps_shown: int | None = STEPS_SHOWN
    ) -> str:
        """A page of an episode: the steps from ``step`` on, of an attempt; all of them where none is a limit."""
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
            known=knowledge(story.turns),
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
        """The values that lists can be filtered by; the same until the index is another one."""
        entries = self._library.entries
        if self._choices_of is not entries:
            self._choices_of = entries
            self._chosen = {name: choices(entries.values(), name) for name in FILTERS}
        return self._chosen

    def compare(self, a: Side, b: Side, others: Sequence[tuple[Side, Side]] = ()) -> str:
        """The comparison of two sides, by default the first two there are."""
        entries = self._library.entries.values()
        sides = sides_of(entries)
        if not a.filters and not b.filters and len(sides) > 1:
            a, b = sides[:2]
        compared = compare_runs(a.select(entries), b.select(entries)) if a.filters or b.filters else None
        linked = [(f"{x.label} / {y.label}", self._links.compare({"a": x.key, "b": y.key})) for x, y in others]
        about = {"sides": sides, "a": a, "b": b, "compared": compared, "others": linked, "follows": False}
        return self._render("compare.html.j2", title="Compare", **about)

    async def pair(self, a: Entry, b: Entry) -> str:
        """Two episodes side by side, their newest attempts."""
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

    async def story(self, entry: Entry, attempt: int) -> Story:
        """The trajectory of an attempt."""
        return read_story(await self._library.read(entry, attempt, "trajectory.jsonl", READ_BYTES))

    async def _result(self, entry: Entry, attempt: int) -> StoredResult | None:
        data = await self._library.read(entry, attempt, RESULT, _RESULT_BYTES)
        return None if data is None else decode_result(data)

    async def _text(self, entry: Entry, attempt: int, name: str, limit: int) -> str:
        data = await self._library.read(entry, attempt, name, limit)
        return "" if data is None else data.decode("utf-8", "replace")

    def _step_link(self, entry: Entry, attempt: int, query: Query) -> "_StepLink":
        return _StepLink(self._links, entry, attempt, query)

    def _neighbours(self, entry: Entry, query: Query) -> tuple[Entry | None, Entry | None]:
        """The episodes before and after this one in the list that it was opened from."""
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
    """The address of a step, on the page of the episode that shows it."""

    def __init__(self, links: Links, entry: Entry, attempt: int, query: Query) -> None:
        self._links = links
        self._entry = entry
        self._parameters = query.parameters(page="")
        if attempt != entry.attempts[-1]:
            self._parameters["attempt"] = str(attempt)

    def __call__(self, seq: int) -> str | None:
        page = {"step": str(seq)} if seq >= STEPS_SHOWN else {}
        return self._links.episode(self._entry, {**self._parameters, **page}, f"step-{seq}")


def attempt_of(entry: Entry, parameters: Mapping[str, str]) -> int:
    """The attempt that an address names, the newest where it names none that there is."""
    wanted = parameters.get("attempt", "")
    return next((number for number in entry.attempts if str(number) == wanted), entry.attempts[-1])


def _first_shown(parameters: Mapping[str, str], story: Story) -> int:
    wanted = parameters.get("step", "0")
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 9 else 0
    return min(number, max(0, len(story.turns) - 1)) // STEPS_SHOWN * STEPS_SHOWN


class Assets(msgspec.Struct, frozen=True):
    """The style sheet and the script that stand in every page, and the policy that allows these two alone."""

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
    """Every value that a template prints: text without characters that deceive; None as nothing."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def observed(turn: Turn) -> Markup:
    """The text of an observation; a diff in it is drawn as one."""
    text = clipped(turn.observation.text)
    diff = turn.observation.diff
    if diff and diff in text:
        before, _, after = text.partition(diff)
        return terminal_text(before) + diff_text(diff) + terminal_text(after)
    return debugger_text(text) if turn.tool == "pdb" else terminal_text(text)


def beginning(message: Message) -> str:
    """The first words of a message, in one line."""
    text = "  ".join(f"{name} {part[:_BEGINNING]}" for name, part in message_parts(message))
    return " ".join(text.split())[:_BEGINNING]


def pretty(value: Any) -> Markup:
    """A value as indented JSON."""
    return plain(clipped(json.dumps(value, indent=2, ensure_ascii=False, default=repr)))


def duration(seconds: float | None) -> str:
    """``850 ms``, ``12.3 s``, ``4:05``, ``3:10:00``."""
    if seconds is None or not 0 <= seconds < 1e9:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def moment(seconds: float) -> str:
    """Seconds since the epoch as the date and time of this machine."""
    if not 0 < seconds < 1e11:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
