"""What every kind has: metadata and conditions, as Kubernetes has them."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from dgym.api.fields import Annotations, Count, Labels, Line, Model, Name, Token

Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]


class OwnerReference(Model, frozen=True, kw_only=True):
    """Whose deletion deletes this object."""

    api_version: Line
    kind: Token
    name: Name
    uid: Token
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Model, frozen=True, kw_only=True):
    """Name, labels, and what the API server adds, so that the output of ``kubectl get -o yaml`` loads as well."""

    name: Name
    namespace: Name | None = None
    labels: Labels = msgspec.field(default_factory=dict)
    annotations: Annotations = msgspec.field(default_factory=dict)
    uid: Token | None = None
    resource_version: Line | None = None
    generation: Count | None = None
    generate_name: Line | None = None
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    deletion_grace_period_seconds: Count | None = None
    owner_references: Annotated[tuple[OwnerReference, ...], msgspec.Meta(max_length=16)] = ()
    finalizers: Annotated[tuple[Line, ...], msgspec.Meta(max_length=64)] = ()
    managed_fields: tuple[dict[str, Any], ...] = ()


class Condition(Model, frozen=True, kw_only=True):
    """One observed fact about an object; ``type`` is the key of the list.

    Attributes:
        type: What the fact is about.
        status: Whether it is so.
        reason: Why, in one word for programs.
        message: Why, for people.
        last_transition_time: When the status changed last.
        observed_generation: The generation of the object that was observed.
    """

    type: Token
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    message: Annotated[str, msgspec.Meta(max_length=32768)] = ""
    last_transition_time: Timestamp | None = None
    observed_generation: Count | None = None


Conditions = Annotated[tuple[Condition, ...], msgspec.Meta(max_length=16)]
