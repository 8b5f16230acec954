"""What can go wrong between a command and a cluster, said with what the user can do about it.

::

    ClusterError            no cluster, no access, or an answer that is none
    └── ApiRefused          the API server answered, and not with success
        ├── NotFound        the object, its namespace or its kind is not there
        └── InvalidObject   the object breaks its schema or a rule (a fault of the manifest)
"""

import re

import msgspec

from dgym.api import GROUP
from dgym.errors import DgymError, ManifestError

INSTALL = "helm install dgym charts/dgym -n dgym-system --create-namespace"
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")


class ClusterError(DgymError):
    """The cluster cannot be reached, or does not do what it is asked for."""


class ApiRefused(ClusterError):
    """The API server refused; ``status`` is HTTP's, ``reason`` one word of Kubernetes'."""

    def __init__(self, message: str, *, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(ApiRefused):
    """The object is not there."""


class InvalidObject(ApiRefused, ManifestError):
    """The object breaks its schema or a rule."""


class _Details(msgspec.Struct, frozen=True):
    """Which object the answer is about."""

    name: str = ""
    kind: str = ""


class ApiStatus(msgspec.Struct, frozen=True):
    """The ``Status`` that the API server answers with."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def refusal(status: int, body: bytes, *, method: str, path: str, context: str) -> ApiRefused:
    """The exception for an answer that is no success."""
    try:
        answer = msgspec.json.decode(body, type=ApiStatus)
    except msgspec.MsgspecError:
        answer = ApiStatus(message=body.decode(errors="replace").strip()[:500])
    text = answer.message or f"HTTP status {status} to {method} {path}"
    if status == 401:
        text = f"the cluster does not take the credentials of context '{context}'; log in again, or choose a --context"
    elif status == 403 and "is forbidden: User" in text:
        role = "view" if method == "GET" else "edit"
        namespace = _NAMESPACE.search(path)
        scope = f"in namespace {namespace[1]}" if namespace else "in all namespaces"
        text += f"; ask whoever runs the cluster for the ClusterRole '{role}' {scope}, or choose a namespace of yours"
    elif status == 404 and f"/{GROUP}/" in path and (answer.details is None or not answer.details.name):
        # Without a name it is not an object that is missing, but the whole kind.
        text = f"the cluster of context '{context}' has no resources of {GROUP}; install dgym: {INSTALL}"
    elif status == 404 and answer.details is not None and answer.details.kind == "namespaces":
        text += f"; make it (kubectl create namespace {answer.details.name}), or choose another with -n"
    kind = NotFound if status == 404 else InvalidObject if status in (400, 422) else ApiRefused
    return kind(text, status=status, reason=answer.reason)
