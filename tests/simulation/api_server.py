"""A model of the API server: versioned objects, delayed watches, and network faults before and after a write.

The model has no schemas. Its only admission check is the quota. It implements the features that the operator relies on:
optimistic concurrency, generations, UIDs, preconditions, deletion with a grace period, garbage collection by owner,
watches from a version, and status 410 for a version that is too old.
"""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from datetime import UTC, timedelta
from operator import itemgetter
from urllib.parse import unquote

import msgspec

from dgym.kube import ApiResponse, ConnectionLost, Transport
from dgym.kube._resources import error_from_answer
from tests.simulation.merging import merged
from tests.simulation.virtual import VirtualClock

_BOOKMARK_SECONDS = 60.0
_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_MUTABLE = ("labels", "annotations", "ownerReferences")
"""Metadata fields that a patch can change."""
_GRACEFUL = "pods"
_GRACE_SECONDS = 5
_PASSING = {"GET": (410, 429, 503), "PATCH": (409, 429, 500, 503), "DELETE": (409, 429, 500, 503)}
"""Errors that the server may return for any request, by method."""


class Refusal(Exception):
    """An error response."""

    def __init__(self, code, message="", reason=""):
        super().__init__(message)
        self.code = code
        self.reason = reason or _REASONS[code]


class ApiServer:
    """The objects and their watches.

    Args:
        random: Source of latencies and faults.
        faults: Share of requests that fail, in any of the possible ways. 0 disables faults.
    """

    def __init__(self, random, *, faults=0.0):
        self.faults = faults
        self.away_until = 0.0
        self.lags_until = 0.0
        """Until this time watches are 10 s late.

        If ``lagging`` is empty, all watches are late, else those of its kinds.
        """
        self.lagging = ()
        self.writes = 0
        self.refused = 0
        """Number of pods that a quota has refused."""
        self._random = random
        self._clock = VirtualClock()
        self._objects = {}
        self._version = 0
        self._oldest = 0
        self._logs = defaultdict(list)
        self._uids = 0
        self._changed = defaultdict(asyncio.Event)
        self.observers = []
        """Called with the event type and the object immediately after each write, without network delay."""
        self.late = []
        """Tasks that deliver delayed requests."""
        self.request_observers = []
        """Called with the transport and the request before the request is sent."""

    # Direct access for the other models, without a network

    def items(self, plural):
        """Return all objects of a kind."""
        return [item for (kind, *_), item in self._objects.items() if kind == plural]

    def get(self, plural, namespace, name):
        """Return the object, or None."""
        return self._objects.get((plural, namespace, name))

    def create(self, plural, namespace, body):
        """Store a new object."""
        name = body["metadata"]["name"]
        if (plural, namespace, name) in self._objects:
            raise Refusal(409, f"{plural} {name} already exists", "AlreadyExists")
        if plural == "pods" and is_sandbox(body):
            self._admit(namespace)
        self._uids += 1
        metadata = {
            **body["metadata"],
            "namespace": namespace,
            "uid": f"uid-{self._uids}",
            "creationTimestamp": _time(self._clock.now()),
            "generation": 1,
        }
        item = {**body, "metadata": metadata}
        if plural in ("episodes", "episodesets", "pods"):
            item.pop("status", None)
        made = self._store("ADDED", plural, item)
        owners = {each["uid"] for each in metadata.get("ownerReferences", ())}
        present = {each["metadata"]["uid"] for each in self._objects.values()} if plural == "pods" else owners
        if owners and owners.isdisjoint(present):
            # The garbage collector deletes a pod that is created after its owner was deleted.
            self.delete(plural, namespace, name)
        return made

    def _admit(self, namespace):
        """Count one more sandbox in each quota of the namespace. Raise ``Refusal`` if a quota is exhausted."""
        for quota in self.items("resourcequotas"):
            name, status = quota["metadata"]["name"], quota["status"]
            used, hard = int(status["used"]["pods"]), status["hard"]["pods"]
            if used >= int(hard):
                self.refused += 1
                message = f"exceeded quota: {name}, requested: pods=1, used: pods={used}, limited: pods={hard}"
                raise Refusal(403, message)
            change = {"status": {"used": {"pods": str(used + 1)}}}
            self.patch("resourcequotas", namespace, name, change, status=True)

    def patch(self, plural, namespace, name, body, *, status):
        """Merge ``body`` into the object, or only into its status."""
        item = self._existing(plural, namespace, name)
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected and expected != item["metadata"]["resourceVersion"]:
            raise Refusal(409, f"{plural} {name}: the object has been modified")
        given = body.get("metadata", {})
        if given.get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
            raise Refusal(409, f"{plural} {name}: the UID is another")
        fields = ("status",) if status else body.keys() - {"metadata", "status"}
        change = {name: body[name] for name in fields if name in body}
        if not status:
            change["metadata"] = {each: given[each] for each in _MUTABLE if each in given}
        result = merged(item, change)
        if result == item:
            return item
        generation = item["metadata"]["generation"] + (result.get("spec") != item.get("spec"))
        return self._store("MODIFIED", plural, result, generation=generation)

    def delete(self, plural, namespace, name, *, uid=None, grace=True):
        """Delete the object and return None. A running pod stays until its kubelet has ended it, and is returned."""
        item = self._existing(plural, namespace, name)
        if uid and uid != item["metadata"]["uid"]:
            raise Refusal(409, f"the UID of {name} is another")
        # The deletion of a pod that has ended does not wait for a kubelet.
        over = item.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if plural == _GRACEFUL and grace and not over:
            if "deletionTimestamp" in item["metadata"]:
                return item
            ends = _time(self._clock.now() + timedelta(seconds=_GRACE_SECONDS))
            return self._store(
                "MODIFIED", plural, item, deletionTimestamp=ends, deletionGracePeriodSeconds=_GRACE_SECONDS
            )
        del self._objects[plural, namespace, name]
        self._store("DELETED", plural, item)
        self._collect(item["metadata"]["uid"])
        return None

    def compact(self):
        """Remove all past events. Watches from an older version then fail with 410."""
        self._oldest = self._version
        self._logs.clear()

    def drop_watches(self):
        """End every watch."""
        self.dropped = self._clock.monotonic()
        for plural in list(self._changed):
            self._wake(plural)

    def _wake(self, plural):
        self._changed.pop(plural, asyncio.Event()).set()

    dropped = -1.0

    def _collect(self, owner):
        for (plural, namespace, name), item in list(self._objects.items()):
            if any(each["uid"] == owner for each in item["metadata"].get("ownerReferences", ())):
                self.delete(plural, namespace, name)

    def _existing(self, plural, namespace, name):
        item = self._objects.get((plural, namespace, name))
        if item is None:
            raise Refusal(404, f"{plural} {name} not found")
        return item

    def _store(self, kind, plural, item, **metadata):
        """Store the object under a new version. Objects are never changed in place, because readers may keep them."""
        self._version += 1
        self.writes += 1
        item = {**item, "metadata": {**item["metadata"], **metadata, "resourceVersion": str(self._version)}}
        if kind != "DELETED":
            self._objects[plural, item["metadata"]["namespace"], item["metadata"]["name"]] = item
        self._logs[plural].append((self._version, kind, item))
        self._wake(plural)
        for observe in self.observers:
            observe(kind, plural, item)
        return item

    # Requests through the network

    async def answer(self, request):
        """Answer one request after a delay. With faults the request or the response may be lost."""
        await asyncio.sleep(self._random.expovariate(1 / 0.02))
        fault = self._random.random()
        if self._clock.monotonic() < self.away_until:
            raise ConnectionLost("the API server is away")
        if fault < self.faults / 4:
            raise ConnectionLost("lost before it had an effect")
        if fault < self.faults / 2:
            return self._refused(Refusal(self._random.choice(_PASSING.get(request.method, (429, 503)))))
        code, body = self._served(request)
        await asyncio.sleep(self._random.expovariate(1 / 0.02))
        if fault < self.faults:
            raise ConnectionLost("the answer was lost")
        return code, body

    def _served(self, request):
        try:
            return self._serve(request)
        except Refusal as refusal:
            return self._refused(refusal)

    def _refused(self, refusal):
        body = {"kind": "Status", "code": refusal.code, "reason": refusal.reason, "message": str(refusal)}
        return refusal.code, body

    def _serve(self, request):
        namespace, plural, name, subresource = parse_path(request.path)
        body = msgspec.json.decode(request.body) if request.body else None
        if request.method == "GET" and name is None:
            return 200, self._list(plural, namespace, request.parameters)
        if request.method == "GET":
            return 200, self._existing(plural, namespace, name)
        if request.method == "POST":
            return 201, self.create(plural, namespace, body)
        if request.method == "DELETE":
            left = self.delete(plural, namespace, name, uid=body.get("preconditions", {}).get("uid"))
            return 200, left if left is not None else {"kind": "Status", "status": "Success"}
        assert request.method == "PATCH", request.method
        if "apply-patch" in request.content_type:
            known = self.get(plural, namespace, name) is not None
            patched = self.patch(plural, namespace, name, body, status=False) if known else self.create(
                plural, namespace, body
            )  # fmt: skip
            return (200 if known else 201), patched
        return 200, self.patch(plural, namespace, name, body, status=subresource == "status")

    def _list(self, plural, namespace, parameters):
        found = [
            item
            for item in self.items(plural)
            if namespace in (None, item["metadata"]["namespace"]) and _selected(item, parameters)
        ]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": found}

    async def events(self, request):
        """Yield the events of a watch and bookmarks. Each event is delayed."""
        namespace, plural, _, _ = parse_path(request.path)
        seen = int(request.parameters["resourceVersion"])
        ends = self._clock.monotonic() + float(request.parameters["timeoutSeconds"])
        begun = self._clock.monotonic()
        lag = self._random.choice((0.01, 0.05, 0.5, 3.0))
        while (left := ends - self._clock.monotonic()) > 0:
            if self._clock.monotonic() < self.away_until or self.dropped > begun:
                raise ConnectionLost("the watch was cut off")
            if seen < self._oldest:
                yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
                return
            changed, log = self._changed[plural], self._logs[plural]
            for version, what, item in log[bisect_right(log, seen, key=itemgetter(0)) :]:
                seen = version
                if namespace in (None, item["metadata"]["namespace"]) and _selected(item, request.parameters):
                    yield {"type": what, "object": item}
                    if self._random.random() < self.faults / 4:
                        yield {"type": what, "object": item}
            try:
                async with asyncio.timeout(min(left, _BOOKMARK_SECONDS)):
                    await changed.wait()
                    lags = self._clock.monotonic() < self.lags_until and plural in (self.lagging or (plural,))
                    late = 10.0 if lags else 0.0
                    await asyncio.sleep(self._random.expovariate(1 / lag) + late)
            except TimeoutError:
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}}


class ReplicaTransport(Transport):
    """The connection of one replica to the API server. A partition cuts it. Each process has its own subclass."""

    server = None
    replica = ""
    cut_until = 0.0
    frozen_until = 0.0
    """Until this time the process is stopped. Responses and timers wait."""
    fuse = None
    """Number of further waits of the process until ``blow`` is called. None disables the fuse."""
    blow = None
    writes_until_frozen = None
    frozen_seconds = 0.0
    """Duration of the stop. It begins ``writes_until_frozen`` writes from now, or never if that is None."""
    writes_until_late = None
    late_seconds = 0.0
    """Delay of one write, ``writes_until_late`` writes from now, or of no write if that is None.

    The sender times out earlier.
    """
    slow_until = 0.0
    """Until this time requests arrive 25 s late. A leader's writes may then arrive after its Lease has expired."""

    async def open(self):
        """Do nothing."""

    async def close(self):
        """Do nothing."""

    async def call(self, *args, **options):
        # The observers run before any delay and retry, at the same moment as the operator's leadership check.
        if asyncio.get_running_loop().time() >= self.frozen_until:
            for observe in self.server.request_observers:
                observe(type(self), args[2])
        return await super().call(*args, **options)

    async def send_once(self, request):
        if request.method != "GET" and "/leases" not in request.path and self._is_late():
            self.server.late.append(asyncio.ensure_future(self._arrive_late(request)))
            await asyncio.sleep(5.0)
            raise ConnectionLost("no answer in time")
        await self.thaw()
        self._check()
        if asyncio.get_running_loop().time() < self.slow_until:
            await asyncio.sleep(25.0)
        code, body = await self.server.answer(request)
        await self.thaw()
        self._check()
        encoded = msgspec.json.encode(body)
        if code >= 300:
            raise error_from_answer(code, encoded, {})
        return ApiResponse(code, encoded)

    @asynccontextmanager
    async def open_stream(self, request, *, silence):
        del silence
        self._check()
        await asyncio.sleep(0.01)
        yield self._lines(request)

    async def _lines(self, request):
        async for event in self.server.events(request):
            await self.thaw()
            self._check()
            yield msgspec.json.encode(event)

    @classmethod
    def _is_late(cls):
        """Count a write and return whether it arrives late. The process may be stopped before the write."""
        if cls.writes_until_frozen is not None:
            cls.writes_until_frozen -= 1
            if not cls.writes_until_frozen:
                cls.writes_until_frozen = None
                cls.frozen_until = asyncio.get_running_loop().time() + cls.frozen_seconds
        if cls.writes_until_late is not None:
            cls.writes_until_late -= 1
            if not cls.writes_until_late:
                cls.writes_until_late = None
                return True
        return False

    async def _arrive_late(self, request):
        await asyncio.sleep(self.late_seconds)
        with suppress(ConnectionLost):
            await self.server.answer(request)

    @classmethod
    async def thaw(cls):
        """Wait until the process runs. Every wait of a process ends with this call."""
        if cls.fuse is not None:
            cls.fuse -= 1
            if not cls.fuse:
                cls.fuse = None
                cls.blow()
        while (left := cls.frozen_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left)

    @classmethod
    def _check(cls):
        if asyncio.get_running_loop().time() < cls.cut_until:
            raise ConnectionLost("this replica is partitioned from the API server")


def is_sandbox(pod):
    """Return True if the pod has the label of sandboxes."""
    return pod["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sandbox"


def is_running(pod):
    """Return True if the quota of the namespace counts the pod."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def is_finished(item):
    """Return True if the object's condition Finished is true."""
    conditions = item.get("status", {}).get("conditions", [])
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


def is_observed(item):
    """Return True if the status of the object follows its spec."""
    return not 0 < item.get("status", {}).get("observedGeneration", 0) < item["metadata"]["generation"]


def without_generation(status):
    """Return the status without ``observedGeneration``, which every change of the spec changes."""
    return {name: value for name, value in status.items() if name != "observedGeneration"}


def parse_path(path):
    """Return the namespace, plural, name and subresource of a path."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    return namespace, parts[0], parts[1] if len(parts) > 1 else None, parts[2] if len(parts) > 2 else None


def _selected(item, parameters):
    if not parameters.get("labelSelector"):
        return True
    labels = item["metadata"].get("labels", {})
    terms = [term.partition("=") for term in parameters["labelSelector"].split(",") if term]
    return all(labels.get(name) == value if equals else name in labels for name, equals, value in terms)


def _time(moment):
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
