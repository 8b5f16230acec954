"""Assignment of episodes to a model's endpoints: the least loaded at the start, then the same to the end.

Servers keep the prefixes of prompts they have seen; an episode that stays finds its own.
"""

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence

_REMEMBERED = 10_000
"""Episodes that never said that they ended are forgotten from this number on, the longest silent first."""

_AVOIDED_SECONDS = 60.0


class Endpoints:
    """The endpoints of one model, and the episodes on each."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._chosen: OrderedDict[str, str] = OrderedDict()
        self._loads = Counter(dict.fromkeys(self._urls, 0))
        self._avoided_until: dict[str, float] = {}

    def choose(self, session: str) -> str:
        """The endpoint of the episode; the least loaded if it has none yet."""
        if session in self._chosen:
            self._chosen.move_to_end(session)
        else:
            self._put(session, self._urls)
            if len(self._chosen) > _REMEMBERED:
                self.release(next(iter(self._chosen)))
        return self._chosen[session]

    def leave(self, session: str) -> None:
        """The episode's endpoint does not answer: give it another, and let new episodes avoid it for a while."""
        broken = self._chosen.get(session)
        others = [url for url in self._urls if url != broken]
        if broken is not None and others:
            self._avoided_until[broken] = time.monotonic() + _AVOIDED_SECONDS
            self.release(session)
            self._put(session, others)

    def release(self, session: str) -> None:
        """The episode has ended."""
        url = self._chosen.pop(session, None)
        if url is not None:
            self._loads[url] -= 1

    def loads(self) -> dict[str, int]:
        """How many episodes each endpoint has."""
        return dict(self._loads)

    def _put(self, session: str, urls: Sequence[str]) -> None:
        """Among equals the session decides, because other processes that count for themselves have episodes too."""
        now = time.monotonic()

        def order(url: str) -> tuple[bool, int, bytes]:
            avoided = self._avoided_until.get(url, now) > now
            return avoided, self._loads[url], hashlib.sha256(f"{session} {url}".encode()).digest()

        url = min(urls, key=order)
        self._chosen[session] = url
        self._loads[url] += 1
