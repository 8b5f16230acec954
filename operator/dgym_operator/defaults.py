"""Resources of containers where neither task nor Episode gives any: the chart's value ``sandboxes.resources``."""

import msgspec

from dgym.api import Resources, parse_quantity

# The memory is what the runner allows programs where no limit is given. Disk is bounded, or one program that fills the
# node's evicts its neighbours; it is not reserved, for nodes that do not account for it would never take the pod.
SANDBOX = Resources(
    requests={"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "0"},
    limits={"memory": "2Gi", "ephemeral-storage": "10Gi"},
)
VERIFIER = Resources(requests={"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "0"})
"""The verifier idles until the sandbox is terminated. Its limits are those of the sandbox."""
_BOUNDED = ("memory", "ephemeral-storage")


class DefaultResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the sandbox, the verifier and the sidecar."""

    sandbox: Resources = SANDBOX
    verifier: Resources = VERIFIER
    sidecar: Resources = Resources(requests={"cpu": "20m", "memory": "64Mi"}, limits={"memory": "256Mi"})


def decode_resources(text: str) -> DefaultResources:
    """The resources of a JSON document.

    Raises:
        ValueError: The document is wrong; the message names the field and the remedy.
    """
    try:
        found = msgspec.json.decode(text or "{}", type=DefaultResources)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(f"sandboxes.resources: {error}; give quantities such as 500m, 2 or 4Gi") from None
    if found.verifier.limits:
        raise ValueError("sandboxes.resources.verifier.limits: the verifier has the limits of the sandbox; remove them")
    for name in _BOUNDED:
        if name not in found.sandbox.limits:
            raise ValueError(f"sandboxes.resources.sandbox.limits.{name} is missing: a sandbox is bounded by it")
    for part, each in (("sandbox", found.sandbox), ("sidecar", found.sidecar)):
        for name in each.requests.keys() & each.limits.keys():
            if parse_quantity(each.requests[name]) > parse_quantity(each.limits[name]):
                raise ValueError(f"sandboxes.resources.{part}: the request of {name} is above its limit; change either")
    return found
