"""What goes wrong between a command and a cluster, with what the user can do about it."""

import re

from dgym.api import GROUP
from dgym.errors import DgymError, ManifestError
from dgym.kube import (
    Access,
    AccessError,
    ApiError,
    BadRequest,
    ConnectionLost,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    UnreadableAnswer,
)

INSTALL = "helm install dgym charts/dgym -n dgym-system --create-namespace"
_NAMESPACE = re.compile(r"/namespaces/([^/]+)/")
_SHOWN_CHARACTERS = 500


class ClusterError(DgymError):
    """The cluster cannot be reached, or refuses."""


def explained(error: ApiError, access: Access) -> DgymError:
    """The exception that a command ends with; ``ManifestError`` where the cluster refuses the manifest."""
    text = _explained(error, access) or error.message[:_SHOWN_CHARACTERS]
    text = text or f"HTTP status {error.status} to {error.method} {error.path}"
    return ManifestError(text) if isinstance(error, BadRequest | Invalid) else ClusterError(text)


def _explained(error: ApiError, access: Access) -> str:
    message, name = error.message, error.details.name
    match error:
        case ConnectionLost():
            return (
                f"the cluster of context '{access.context}' cannot be reached at {access.server}: {message};"
                " see whether it runs (kubectl cluster-info), or choose another with --context"
            )
        case UnreadableAnswer():
            return f"{access.server} answers what no API server does ({message}); see the kubeconfig"
        case Unauthorized() if isinstance(error.__cause__, AccessError):
            return message
        case Unauthorized():
            return (
                f"the cluster does not take the credentials of context '{access.context}'; log in again, or choose a"
                " --context"
            )
        case Forbidden() if "is forbidden: User" in message:
            role = "view" if error.method == "GET" else "edit"
            namespace = _NAMESPACE.search(error.path)
            scope = f"in namespace {namespace[1]}" if namespace else "in all namespaces"
            return (
                f"{message}; ask whoever runs the cluster for the ClusterRole '{role}' {scope}, or choose a namespace"
                " of yours"
            )
        case NotFound() if f"/{GROUP}/" in error.path and not name:
            # Without a name it is not an object that is missing, but the whole kind.
            return f"the cluster of context '{access.context}' has no resources of {GROUP}; install dgym: {INSTALL}"
        case NotFound() if error.details.kind == "namespaces":
            return f"{message}; make it (kubectl create namespace {name}), or choose another with -n"
    return ""
