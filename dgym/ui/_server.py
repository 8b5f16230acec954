"""The pages for browsers: a web server on this machine, or files.

An export is a bundle for any web server, or one file for each episode.
"""

import asyncio
import hashlib
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from hmac import compare_digest
from itertools import combinations
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from dgym.errors import DgymError, ManifestError
from dgym.results import FILES, EpisodeEntry, Library
from dgym.terminal import printable
from dgym.ui._listing import PAGE_ROWS, SORTS, Query, Side, choices, overviews, sides_of
from dgym.ui._pages import COMPARE, EPISODES, HOME, PAIR, STEPS_SHOWN, Links, Pages, assets, attempt_of, path_of
from dgym.ui._trajectories import READ_BYTES

_SIDES = 10
"""Maximum number of sides that are compared with each other. Ten sides give 45 pages."""
_MOST_PAIRS = 2_000
_LINKED = ("state", "arm")
"""A bundle has a list for each value of these fields."""


class _BundleIndex:
    """The files of a bundle: lists by their parameters, comparisons, and pairs of episodes that pages link to."""

    def __init__(self, library: Library) -> None:
        entries = library.entries.values()
        bases = [{}, *({"run": each.run, "set": each.group} for each in overviews(library))]
        bases += [{name: value} for name in _LINKED for value in choices(entries, name)]
        self.lists: dict[tuple[tuple[str, str], ...], str] = {}
        for base in bases:
            for parameters in _variants({name: value for name, value in base.items() if value}, library):
                number = len(self.lists)
                self.lists.setdefault(_key(parameters), f"list/{number}.html" if number else EPISODES)
        sides = sides_of(entries)[:_SIDES]
        self.compared = {
            pair: f"compare/{number}.html" if number else COMPARE for number, pair in enumerate(combinations(sides, 2))
        }
        self.pairs: dict[tuple[str, str], str] = {}
        self.waiting: deque[tuple[EpisodeEntry, EpisodeEntry]] = deque()

    def pair(self, a: EpisodeEntry, b: EpisodeEntry) -> str | None:
        """The file of a pair of episodes, which is queued for writing. None if there are too many pairs."""
        key = (a.path, b.path)
        if key not in self.pairs and len(self.pairs) < _MOST_PAIRS:
            digest = hashlib.sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()[:24]
            self.pairs[key] = f"pair/{digest}.html"
            self.waiting.append((a, b))
        return self.pairs.get(key)


def _variants(base: dict[str, str], library: Library) -> Iterator[dict[str, str]]:
    """The parameters of the pages of a list. A list with one page also has a variant for each sort order."""
    found = len(Query.parse(base).select(library.entries.values()))
    yield base
    for page in range(2, -(-found // PAGE_ROWS) + 1):
        yield {**base, "page": str(page)}
    if found <= PAGE_ROWS:
        yield from ({**base, "sort": order} for key in SORTS for order in (key, f"-{key}") if order != "episode")


def _key(parameters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in parameters.items() if value))


class _BundleLinks(Links):
    """Relative links between the files of a bundle, so that the bundle works in any directory."""

    def __init__(self, index: _BundleIndex, page: str) -> None:
        self._index = index
        self._up = "../" * page.count("/")

    def home(self) -> str:
        return self._up + HOME

    def episodes(self, parameters: Mapping[str, str]) -> str | None:
        return self._to(self._index.lists.get(_key(parameters)))

    def episode(self, entry: EpisodeEntry, parameters: Mapping[str, str] | None = None, anchor: str = "") -> str:
        suffix = _suffix(parameters or {}) + (f"#{anchor}" if anchor else "")
        return f"{self._up}episode/{path_of(entry)}{suffix}"

    def compare(self, parameters: Mapping[str, str]) -> str | None:
        sides = (Side.parse(parameters.get("a", "")), Side.parse(parameters.get("b", "")))
        first = next(iter(self._index.compared.values()), None)
        return self._to(self._index.compared.get(sides) if parameters else first)

    def pair(self, a: EpisodeEntry, b: EpisodeEntry) -> str | None:
        return self._to(self._index.pair(a, b))

    def file(self, entry: EpisodeEntry, attempt: int, name: str) -> str:
        return f"{self._up}file/{path_of(entry)}/{attempt}/{name}"

    def _to(self, file: str | None) -> str | None:
        return None if file is None else self._up + file


def _suffix(parameters: Mapping[str, str]) -> str:
    attempt, step = parameters.get("attempt"), int(parameters.get("step", "0")) // STEPS_SHOWN * STEPS_SHOWN
    return (f".attempt-{attempt}" if attempt else "") + (f".step-{step}" if step else "") + ".html"


async def export(library: Library, directory: Path) -> int:
    """Write all pages and all stored files below ``directory``. Returns the number of episodes.

    Raises:
        ManifestError: The directory exists and is not empty.
        DgymError: A file cannot be written.
    """
    await library.refresh()
    if not await asyncio.to_thread(_is_free, directory):
        raise ManifestError(f"--export {directory}: exists and is not an empty directory; give another path")
    bundle = _Bundle(library, directory)
    try:
        await bundle.write_all()
    except OSError as error:
        raise DgymError(f"--export {directory}: {error.filename or ''}: {error.strerror or error}") from error
    return len(library.entries)


class _Bundle:
    def __init__(self, library: Library, directory: Path) -> None:
        self._library = library
        self._directory = directory
        self._index = _BundleIndex(library)

    async def write_all(self) -> None:
        await self._write(HOME, self._pages(HOME).home())
        for parameters, file in self._index.lists.items():
            await self._write(file, self._pages(file).episodes(Query.parse(dict(parameters))))
        for (a, b), file in self._index.compared.items():
            await self._write(file, self._pages(file).compare(a, b, others=tuple(self._index.compared)))
        for entry in list(self._library.entries.values()):
            await self._write_episode(entry)
        while self._index.waiting:
            one, other = self._index.waiting.popleft()
            file = self._index.pairs[one.path, other.path]
            await self._write(file, await self._pages(file).pair(one, other))

    def _pages(self, file: str) -> Pages:
        return Pages(self._library, _BundleLinks(self._index, file))

    async def _write_episode(self, entry: EpisodeEntry) -> None:
        for attempt in entry.attempts:
            about = {} if attempt == entry.attempts[-1] else {"attempt": str(attempt)}
            steps = len((await self._pages(HOME).story(entry, attempt)).turns)
            for first in range(0, max(1, steps), STEPS_SHOWN):
                parameters = {**about, "step": str(first)}
                file = f"episode/{entry.path}{_suffix(parameters)}"
                await self._write(file, await self._pages(file).episode(entry, parameters))
            for name in FILES:
                data = await self._library.read(entry, attempt, name, READ_BYTES)
                if data is not None:
                    await self._write(f"file/{entry.path}/{attempt}/{name}", data)

    async def _write(self, file: str, content: str | bytes) -> None:
        data = content.encode("utf-8", "replace") if isinstance(content, str) else content
        await asyncio.to_thread(_write, self._directory / file, data)


def _is_free(directory: Path) -> bool:
    return not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


async def export_single(library: Library, names: Sequence[str], directory: Path) -> list[Path]:
    """Write each episode with one of these names or paths to its own file. Returns the files.

    Raises:
        ManifestError: An episode does not exist, or several have the name. The message then lists their paths.
        DgymError: A file cannot be written.
    """
    await library.refresh()
    written = []
    for entry in [_find(library, name) for name in names]:
        page = await Pages(library, Links()).episode(entry, {}, steps_shown=None)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", entry.about.episode or entry.path)[:200].lstrip(".") or "episode"
        path = directory / f"{name}.html"
        try:
            await asyncio.to_thread(_write, path, page.encode("utf-8", "replace"))
        except OSError as error:
            raise DgymError(f"--single-file: {path}: {error.strerror or error}") from error
        written.append(path)
    return written


def _find(library: Library, name: str) -> EpisodeEntry:
    if (entry := library.entries.get(name.strip("/"))) is not None:
        return entry
    found = [entry for entry in library.entries.values() if entry.about.episode == name]
    if len(found) == 1:
        return found[0]
    if not found:
        raise ManifestError(f"--single-file {name}: no episode of that name or path in {library.title}")
    some = ", ".join(entry.path for entry in found[:5])
    raise ManifestError(f"--single-file {name}: {len(found)} episodes have that name; give a path: {some}")


_SHUTDOWN_SECONDS = 2.0
_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_TOKEN = "token"  # noqa: S105 - the parameter's name


class PageAccess:
    """The token of one server, and the cookie that a browser gets for it."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)

    def url(self, port: int) -> str:
        """The URL to open in a browser."""
        return f"http://127.0.0.1:{port}/?{urlencode({_TOKEN: self.token})}"

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that answers or refuses a request. Every response has the headers that exclude other sites."""
        try:
            response = await self._answer(request, handler)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=f"{error.status}: {error.reason}\n")
            if "Location" in error.headers:
                response.headers["Location"] = error.headers["Location"]
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        response.headers.update(_HEADERS)
        policy = assets().policy if response.content_type == "text/html" else "default-src 'none'; sandbox"
        response.headers["Content-Security-Policy"] = f"{policy}; frame-ancestors 'none'"
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if _hostname(request.headers.get("Host", "")) not in _HOSTS:
            return web.Response(status=403, text="This server only answers requests for 127.0.0.1 and localhost.\n")
        name = f"dgym-ui-{_port(request)}"
        given = request.query.get(_TOKEN)
        if given is not None and compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            rest = {key: value for key, value in request.query.items() if key != _TOKEN}
            response = web.Response(status=303, headers={"Location": str(request.rel_url.with_query(rest))})
            response.set_cookie(name, self._cookie, httponly=True, samesite="Strict", path="/")
            return response
        cookie = request.cookies.get(name, "")
        if not compare_digest(cookie.encode("utf-8", "replace"), self._cookie.encode()):
            return web.Response(status=401, text="Open the address that dgym ui printed: it contains the token.\n")
        return await handler(request)


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _port(request: web.Request) -> int:
    """The port of this server. It is part of the cookie's name because all ports of a host share their cookies."""
    address = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return int(address[1]) if address else 0


class _ServerLinks(Links):
    """Links between pages of the server."""

    live = True

    def home(self) -> str:
        return f"/{HOME}"

    def episodes(self, parameters: Mapping[str, str]) -> str:
        return _with(f"/{EPISODES}", parameters)

    def episode(self, entry: EpisodeEntry, parameters: Mapping[str, str] | None = None, anchor: str = "") -> str:
        return _with(f"/episode/{path_of(entry)}.html", parameters or {}) + (f"#{anchor}" if anchor else "")

    def compare(self, parameters: Mapping[str, str]) -> str:
        return _with(f"/{COMPARE}", parameters)

    def pair(self, a: EpisodeEntry, b: EpisodeEntry) -> str:
        return _with(f"/{PAIR}", {"a": a.path, "b": b.path})

    def file(self, entry: EpisodeEntry, attempt: int, name: str) -> str:
        return f"/file/{path_of(entry)}/{attempt}/{name}"


def _with(path: str, parameters: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(parameters, errors='surrogateescape')}" if parameters else path


async def serve(library: Library, *, port: int, announce: Callable[[str], None]) -> None:
    """Serve the library on the loopback interface until cancelled. ``announce`` is called with the URL.

    Raises:
        DgymError: The port is in use.
    """
    access = PageAccess()
    runner = web.AppRunner(make_app(library, access), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise DgymError(f"--port {port}: {error.strerror or error}; choose another, or 0 for any") from error
        announce(access.url(runner.addresses[0][1]))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def make_app(library: Library, access: PageAccess) -> web.Application:
    """The web application. It only answers GET and HEAD, and only reads from ``library``."""
    handlers = _Handlers(library)
    app = web.Application(middlewares=[access.check, handlers.explain])
    app.add_routes(
        [
            web.get("/", handlers.root),
            web.get(f"/{HOME}", handlers.home),
            web.get(f"/{EPISODES}", handlers.episodes),
            web.get(f"/{COMPARE}", handlers.compare),
            web.get(f"/{PAIR}", handlers.pair),
            web.get("/episode/{path:.+}", handlers.episode),
            web.get("/file/{path:.+}", handlers.file),
        ]
    )
    return app


class _Handlers:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._pages = Pages(library, _ServerLinks())

    @web.middleware
    async def explain(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware that answers 503 with the error message if the results cannot be read."""
        try:
            await self._library.refresh()
            return await handler(request)
        except DgymError as error:
            return web.Response(status=503, text=f"{printable(str(error))}\n")

    async def root(self, _request: web.Request) -> web.StreamResponse:
        raise web.HTTPSeeOther(f"/{HOME}")

    async def home(self, request: web.Request) -> web.StreamResponse:
        return _page(request, self._pages.home())

    async def episodes(self, request: web.Request) -> web.StreamResponse:
        return _page(request, self._pages.episodes(Query.parse(request.query)))

    async def episode(self, request: web.Request) -> web.StreamResponse:
        entry = self._entry(_raw_path(request, "/episode/").removesuffix(".html"))
        # The page of an episode is long, so its ETag is computed from the times of the files and not from the page.
        version = await self._library.version(entry, attempt_of(entry, request.query))
        tag = _tag(f"{version} {entry.version} {entry.state} {request.rel_url.raw_query_string}")
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304)
        return _page(request, await self._pages.episode(entry, request.query), tag)

    async def compare(self, request: web.Request) -> web.StreamResponse:
        a, b = (Side.parse(request.query.get(name, "")) for name in ("a", "b"))
        return _page(request, await asyncio.to_thread(self._pages.compare, a, b))

    async def pair(self, request: web.Request) -> web.StreamResponse:
        given = dict(parse_qsl(request.rel_url.raw_query_string, errors="surrogateescape", max_num_fields=20))
        return _page(request, await self._pages.pair(*(self._entry(given.get(name, "")) for name in ("a", "b"))))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """A stored file as plain text, so that a browser does not render it as a page."""
        path, _, rest = _raw_path(request, "/file/").rpartition("/")
        path, _, attempt = path.rpartition("/")
        entry = self._entry(path)
        if rest not in FILES or not attempt.isdecimal() or len(attempt) > 9:
            raise web.HTTPNotFound
        data = await self._library.read(entry, int(attempt), rest, READ_BYTES)
        if data is None:
            raise web.HTTPNotFound
        return web.Response(body=data, content_type="text/plain", charset="utf-8")

    def _entry(self, path: str) -> EpisodeEntry:
        """The entry of a path. It is looked up in the index, so a request cannot name a file outside the results."""
        entry = self._library.entries.get(path)
        if entry is None:
            raise web.HTTPNotFound
        return entry


def _raw_path(request: web.Request, prefix: str) -> str:
    return unquote(request.rel_url.raw_path.removeprefix(prefix), errors="surrogateescape")


def _page(request: web.Request, text: str, tag: str | None = None) -> web.StreamResponse:
    """An HTML page, or 304 if the browser already has it."""
    body = text.encode("utf-8", "replace")
    tag = tag or _tag(text)
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304)
    response = web.Response(body=body, content_type="text/html", charset="utf-8", headers={"ETag": tag})
    response.enable_compression()
    return response


def _tag(text: str) -> str:
    return f'"{hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]}"'
