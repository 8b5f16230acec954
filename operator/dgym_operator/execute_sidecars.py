"""What the operator reports to sidecars: that the sandbox's container has ended or still runs, and a cancellation.

A sidecar may be slow or gone, so nobody who decides waits for it: calls are queued, each once, and made by a few
workers with a short deadline. One that failed is asked for again by the decision that wanted it; one that was answered
is not made again.
"""

import logging
from collections import OrderedDict
from typing import Any, NamedTuple, TypeVar

from dgym.kube import WorkQueue
from dgym.wire.http import Path, Role, make_token
from dgym_operator.agents_http import CallFailed, PodCaller, Refused
from dgym_operator.logs import fields

V = TypeVar("V")

_log = logging.getLogger(__name__)
_REMEMBERED = 20_000
_DONE, _ATTEMPT_OVER = 200, 410
"""Status 202 is no answer yet."""


class SidecarCall(NamedTuple):
    """One thing to tell one sidecar."""

    path: Path
    url: str
    episode_uid: str
    attempt: int
    body: bytes | None = None


class SidecarCalls:
    """Calls under way, and those that were answered."""

    def __init__(self, caller: PodCaller, key: bytes, queue: WorkQueue[SidecarCall]) -> None:
        self._caller = caller
        self._key = key
        self._queue = queue
        self._answered: OrderedDict[SidecarCall, None] = OrderedDict()
        self._failures: OrderedDict[SidecarCall, str] = OrderedDict()

    def ask(self, call: SidecarCall) -> bool:
        """Have the call made, unless it was answered already; whether it was."""
        if call in self._answered:
            return True
        self._queue.add(call)
        return False

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
            status, _ = await self._caller.call("POST", call.url + call.path, token=token, body=call.body)
        except CallFailed as error:
            status = error.status if isinstance(error, Refused) else 0
            if status != _ATTEMPT_OVER:
                self._log_failure(call, str(error), about)
        if status in (_DONE, _ATTEMPT_OVER):
            _log.info("a sidecar was called", extra=about)
            self._failures.pop(call, None)
            _remember(self._answered, call, None)

    def _log_failure(self, call: SidecarCall, failure: str, about: dict[str, Any]) -> None:
        """Log each cause once: the call is made again every few seconds."""
        if self._failures.get(call) != failure:
            _log.warning("a call to a sidecar failed: %s", failure, extra=about)
        _remember(self._failures, call, failure)


def _remember(known: OrderedDict[SidecarCall, V], call: SidecarCall, value: V) -> None:
    known[call] = value
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
