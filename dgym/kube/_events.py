"""Kubernetes Events, which ``kubectl describe`` shows with an object.

Recording is best effort and never blocks. One loop sends the Events, at a lower rate than other writes. If the same
Event is recorded again while it waits or soon after it was sent, its count is increased and a second Event is not sent.
Warnings are sent before Normal Events, and are never dropped to make room for a Normal Event.
"""

import asyncio
import logging
from collections import OrderedDict
from random import Random
from typing import Any, Literal

import msgspec

from dgym.kube._client import Client
from dgym.kube._resources import EVENTS, ApiError, NotFound, Object, Resource
from dgym.kube._throttle import Clock, TokenBucket, micro_time

logger = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
_NOTE_LIMIT = 1024
_NAME_LIMIT = 200
_SERIES_SECONDS = 360.0
"""An Event that is recorded again within this time joins the same series. The API server keeps Events for an hour."""


class _Content(msgspec.Struct, frozen=True):
    """The content of an Event. Events with equal content form a series."""

    uid: str
    kind: str
    namespace: str
    name: str
    api_version: str
    type: EventType
    reason: str
    action: str
    note: str

    @property
    def event_namespace(self) -> str:
        return self.namespace or "default"


class _Series(msgspec.Struct):
    event: str
    count: int
    last: float


class EventRecorder:
    """Records Events. ``run`` sends them.

    Args:
        client: For the API server.
        controller: The reporting controller, such as ``dgym.dev/operator``.
        instance: The replica of the controller.
        clock: For time stamps, the rate limit and the length of a series.
        random: For the names of the Events.
        qps: Events per second.
        limit: Maximum number of waiting Events, and of series in memory. Further ones are dropped.

    Attributes:
        dropped: Number of Events that were not sent, by type.
    """

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        clock: Clock,
        random: Random,
        qps: float = 10.0,
        limit: int = 1000,
    ) -> None:
        self.dropped: dict[EventType, int] = {"Normal": 0, "Warning": 0}
        self._client = client
        self._controller = controller
        self._instance = instance
        self._clock = clock
        self._random = random
        self._bucket = TokenBucket(qps=qps, burst=max(1, round(5 * qps)), clock=clock)
        self._limit = limit
        self._waiting: dict[EventType, OrderedDict[_Content, int]] = {
            "Warning": OrderedDict(),
            "Normal": OrderedDict(),
        }
        self._series: OrderedDict[_Content, _Series] = OrderedDict()
        self._work = asyncio.Event()

    def record(
        self,
        resource: Resource,
        regarding: Object,
        *,
        reason: str,
        message: str,
        type: EventType = "Normal",  # noqa: A002 - the API's own name
        action: str = "Reconcile",
    ) -> None:
        """Queue an Event about the object. Returns at once."""
        metadata = regarding.metadata
        content = _Content(
            metadata.uid,
            resource.kind,
            metadata.namespace,
            metadata.name,
            resource.api_version,
            type,
            reason,
            action,
            message[:_NOTE_LIMIT],
        )
        waiting = self._waiting[type]
        if content not in waiting and not self._has_room_for(type):
            self.dropped[type] += 1
            return
        waiting[content] = waiting.get(content, 0) + 1
        self._work.set()

    def _has_room_for(self, kind: EventType) -> bool:
        """Return True if one more Event may wait. Drops the newest Normal Event if a Warning needs its place."""
        normal = self._waiting["Normal"]
        if sum(map(len, self._waiting.values())) < self._limit:
            return True
        if kind == "Normal" or not normal:
            return False
        _, times = normal.popitem()
        self.dropped["Normal"] += times
        return True

    async def run(self) -> None:
        """Send the recorded Events until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while any(self._waiting.values()):
                await self._bucket.take()
                content, times = next(filter(None, self._waiting.values())).popitem(last=False)
                try:
                    await self._send(content, times)
                except ApiError as error:
                    self.dropped[content.type] += 1
                    logger.info(
                        "event %s of %s/%s was not sent: %s", content.reason, content.namespace, content.name, error
                    )

    async def _send(self, content: _Content, times: int) -> None:
        now = self._clock.monotonic()
        series = self._series.get(content)
        if series is not None and now - series.last <= _SERIES_SECONDS:
            count = series.count + times
            body = {"series": {"count": count, "lastObservedTime": micro_time(self._clock.now())}}
            try:
                await self._client.patch(
                    EVENTS, series.event, body, namespace=content.event_namespace, decode=bytes, priority=None
                )
            except NotFound:
                times = count
            else:
                series.count, series.last = count, now
                self._series.move_to_end(content)
                return
        await self._begin(content, times)

    async def _begin(self, content: _Content, times: int) -> None:
        name = f"{content.name[:_NAME_LIMIT]}.{self._random.getrandbits(64):016x}"
        await self._client.create(
            EVENTS, self._body(content, name, times), namespace=content.event_namespace, decode=bytes, priority=None
        )
        self._series[content] = _Series(name, times, self._clock.monotonic())
        self._series.move_to_end(content)
        while len(self._series) > self._limit:
            self._series.popitem(last=False)

    def _body(self, content: _Content, name: str, times: int) -> dict[str, Any]:
        now = micro_time(self._clock.now())
        body = EVENTS.manifest(
            metadata={"name": name, "namespace": content.event_namespace},
            eventTime=now,
            reportingController=self._controller,
            reportingInstance=self._instance[:128],
            action=content.action,
            reason=content.reason,
            regarding={
                "apiVersion": content.api_version,
                "kind": content.kind,
                "namespace": content.namespace,
                "name": content.name,
                "uid": content.uid,
            },
            note=content.note,
            type=content.type,
        )
        if times > 1:
            body["series"] = {"count": times, "lastObservedTime": now}
        return body
