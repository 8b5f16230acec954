"""The Kubernetes client of the operator and the command line: requests, watches, a work queue, leader election, Events.

Of episodes it holds the resources alone. Clock and random are arguments; every wait has an end.
"""

from dgym.kube.auth import SERVICE_ACCOUNT, Access, AccessError, Credentials, load_access
from dgym.kube.client import Client
from dgym.kube.election import LeaderElector, LeadershipLost
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
    PortUnreachable,
    ServerUnavailable,
    TooManyRequests,
    Unauthorized,
    UnreadableAnswer,
)
from dgym.kube.events import EventRecorder, EventType
from dgym.kube.forward import PortForward
from dgym.kube.lease import LeaseRecord, LeaseSpec
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
    RESOURCE_QUOTAS,
    SANDBOX_POOLS,
    SECRETS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Key,
    Object,
    Resource,
    key_of,
)
from dgym.kube.store import Change, Source, Store
from dgym.kube.throttle import Backoff, Clock, Priority, SystemClock, TokenBucket
from dgym.kube.transport import Answer, Request, Transport

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
    "RESOURCE_QUOTAS",
    "SANDBOX_POOLS",
    "SECRETS",
    "SERVICE_ACCOUNT",
    "SUBJECT_ACCESS_REVIEWS",
    "TOKEN_REVIEWS",
    "Access",
    "AccessError",
    "AlreadyExists",
    "Answer",
    "ApiError",
    "Backoff",
    "BadRequest",
    "Change",
    "Client",
    "Clock",
    "Conflict",
    "ConnectionLost",
    "Credentials",
    "EventRecorder",
    "EventType",
    "Expired",
    "Forbidden",
    "Invalid",
    "Key",
    "LeaderElector",
    "LeadershipLost",
    "LeaseRecord",
    "LeaseSpec",
    "NotFound",
    "Object",
    "PortForward",
    "PortUnreachable",
    "Priority",
    "QueueClosed",
    "Reflector",
    "Request",
    "Resource",
    "ServerUnavailable",
    "Source",
    "Store",
    "SystemClock",
    "TokenBucket",
    "TooManyRequests",
    "Transport",
    "Unauthorized",
    "UnreadableAnswer",
    "WatchSettings",
    "WorkQueue",
    "key_of",
    "load_access",
]
