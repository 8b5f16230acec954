"""What the operator tells sidecars: that the sandbox's container has ended, and that the episode is cancelled.

A sidecar may be slow or gone, so nobody who decides waits for it: calls are queued, each once, and made by a few
workers with a short deadline. One that failed is asked for again by the decision that wanted it; one that was answered
is not made again.
"""

import logging
from collections import OrderedDict
from typing import NamedTuple

from dgym.wire.http import Path, Role
from dgym.wire.http_tokens import make_token
from dgym_operator.agents_http import CallFailed, PodCaller
from dgym_operator.kube import WorkQueue
from dgym_operator.logs import fields

_log = logging.getLogger(__name__)
_REMEMBERED = 20_000
_ACCEPTED = 200


class SidecarCall(NamedTuple):
    """One thing to tell one sidecar."""

    path: Path
    url: str
    episode_uid: str
    attempt: int


class SidecarCalls:
    """Calls under way, and those that were answered."""

    def __init__(self, caller: PodCaller, key: bytes, queue: WorkQueue[SidecarCall]) -> None:
        self._caller = caller
        self._key = key
        self._queue = queue
        self._answered: OrderedDict[SidecarCall, None] = OrderedDict()

    def ask(self, call: SidecarCall) -> None:
        """Have the call made, unless it was answered already."""
        if call not in self._answered:
            self._queue.add(call)

    async def work(self) -> None:
        """Make calls until cancelled. Several may do so."""
        while True:
            async with self._queue.take() as call:
                # Asked for again while it was made, it may have been answered since.
                if call not in self._answered:
                    await self._make(call)

    async def _make(self, call: SidecarCall) -> None:
        about = fields(episode_uid=call.episode_uid, attempt=call.attempt, url=call.url, call=call.path.value)
        token = make_token(self._key, episode_uid=call.episode_uid, attempt=call.attempt, role=Role.OPERATE)
        try:
            status, _ = await self._caller.call("POST", call.url + call.path, token=token)
        except CallFailed as error:
            _log.info("a sidecar could not be told: %s", error, extra=about)
            return
        if status == _ACCEPTED:
            _log.info("a sidecar was told", extra=about)
            self._answered[call] = None
            if len(self._answered) > _REMEMBERED:
                self._answered.popitem(last=False)
