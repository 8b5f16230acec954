"""What sandbox and verifier ask of a node."""

import msgspec

from dgym.api import PodOverrides, Resources
from dgym.api.quantities import parse_quantity

# The memory is what the runner allows programs where no limit is given. Disk is bounded, or one program that fills the
# node's evicts its neighbours; it is not reserved, for nodes that do not account for it would never take the pod.
DEFAULT = Resources(
    requests={"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "0"},
    limits={"memory": "2Gi", "ephemeral-storage": "10Gi"},
)
_IDLE = {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "0"}


def sandbox_resources(task: Resources, overrides: PodOverrides) -> Resources:
    """Name by name, the episode's beat the task's, which beat the default.

    Whoever sets one side of a pair moves the other along: a limit of 128Mi lowers a default request of 256Mi.
    """
    merged = DEFAULT
    for layer in (task, overrides.resources):
        merged = _over(merged, layer)
    return merged


def verifier_resources(sandbox: Resources) -> Resources:
    """It idles until the sandbox is dead, and then needs as much."""
    requests = {name: _least(quantity, sandbox.limits.get(name)) for name, quantity in _IDLE.items()}
    return Resources(requests=requests, limits=sandbox.limits)


def as_manifest(resources: Resources) -> dict[str, dict[str, str]]:
    """As of a container."""
    return {"requests": dict(resources.requests), "limits": dict(resources.limits)}


def _over(below: Resources, layer: Resources) -> Resources:
    requests, limits = {**below.requests, **layer.requests}, {**below.limits, **layer.limits}
    for name in limits.keys() & requests.keys():
        if parse_quantity(requests[name]) <= parse_quantity(limits[name]):
            continue
        if name not in layer.requests:
            requests[name] = limits[name]
        elif name not in layer.limits:
            limits[name] = requests[name]
        # Both given and at odds: the API server says so.
    return msgspec.structs.replace(below, requests=requests, limits=limits)


def _least(quantity: str, limit: str | None) -> str:
    return quantity if limit is None or parse_quantity(quantity) <= parse_quantity(limit) else limit
