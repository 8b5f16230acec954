"""The API server as the operator sees it: requests, watched stores, a queue of work, leadership and Events.

Knows nothing of episodes. Time and chance are passed in; every wait has an end.
"""

from dgym.kube.auth import Access, AccessError, FixedCredentials, load_access
from dgym.kube.calling import Observe
from dgym.kube.client import Client, PatchType
from dgym.kube.clock import Clock, SystemClock, Timer
from dgym.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionLost,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerUnavailable,
    StatusCause,
    StatusDetails,
    TooManyRequests,
    Unauthorized,
    UnreadableAnswer,
)
from dgym.kube.events import EventRecorder, EventType
from dgym.kube.lease import LeaderElector, LeadershipLost, LeaseSettings
from dgym.kube.listing import Page
from dgym.kube.objects import Key, Metadata, Object, key_of
from dgym.kube.queue import QueueClosed, WorkQueue
from dgym.kube.reflector import Reflector, WatchSettings
from dgym.kube.resources import (
    CONFIG_MAPS,
    DEBUG_TASKS,
    EPISODE_SETS,
    EPISODES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    Resource,
)
from dgym.kube.store import Change, Index, Listener, Source, Store
from dgym.kube.throttle import Backoff, TokenBucket

__all__ = [
    "CONFIG_MAPS",
    "DEBUG_TASKS",
    "EPISODES",
    "EPISODE_SETS",
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NETWORK_POLICIES",
    "PODS",
    "SECRETS",
    "Access",
    "AccessError",
    "AlreadyExists",
    "ApiError",
    "Backoff",
    "BadRequest",
    "Change",
    "Client",
    "Clock",
    "Conflict",
    "ConnectionLost",
    "EventRecorder",
    "EventType",
    "Expired",
    "FixedCredentials",
    "Forbidden",
    "Index",
    "Invalid",
    "Key",
    "LeaderElector",
    "LeadershipLost",
    "LeaseSettings",
    "Listener",
    "Metadata",
    "NotFound",
    "Object",
    "Observe",
    "Page",
    "PatchType",
    "QueueClosed",
    "Reflector",
    "Resource",
    "ServerUnavailable",
    "Source",
    "StatusCause",
    "StatusDetails",
    "Store",
    "SystemClock",
    "Timer",
    "TokenBucket",
    "TooManyRequests",
    "Unauthorized",
    "UnreadableAnswer",
    "WatchSettings",
    "WorkQueue",
    "key_of",
    "load_access",
]
