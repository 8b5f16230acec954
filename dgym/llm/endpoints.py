"""Which of a model's endpoints an episode uses: the least loaded at its start, and then the same to its end.

Servers keep the prefixes of prompts they have seen; an episode that stays finds its own.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence

_REMEMBERED = 10_000
"""Episodes that never said that they ended are forgotten from this number on, the longest silent first."""


class Endpoints:
    """The endpoints of one model, and the episodes on each."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._chosen: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._urls)

    def choose(self, session: str) -> str:
        """The endpoint of the episode; the least loaded if it has none yet."""
        if session in self._chosen:
            self._chosen.move_to_end(session)
        else:
            self._chosen[session] = self._least_loaded(self._urls, session)
            if len(self._chosen) > _REMEMBERED:
                self._chosen.popitem(last=False)
        return self._chosen[session]

    def leave(self, session: str) -> None:
        """The episode's endpoint does not answer: give it the least loaded of the others."""
        broken = self._chosen.get(session)
        others = [url for url in self._urls if url != broken]
        if broken is not None and others:
            self._chosen[session] = self._least_loaded(others, session)

    def release(self, session: str) -> None:
        """The episode has ended."""
        self._chosen.pop(session, None)

    def loads(self) -> dict[str, int]:
        """How many episodes each endpoint has."""
        counts = Counter(self._chosen.values())
        return {url: counts[url] for url in self._urls}

    def _least_loaded(self, urls: Sequence[str], session: str) -> str:
        """Among equals the session decides, because other processes that count for themselves have episodes too."""
        loads = self.loads()
        return min(urls, key=lambda url: (loads[url], hashlib.sha256(f"{session} {url}".encode()).digest()))
