"""Types that all kinds share: the base class, bounded types, metadata, conditions, labels and quantities.

Every string, list and number is bounded, because the structs are also the source of the schemas of the custom
resources, and the API server estimates the cost of a rule from the bounds. Error messages show the ``description`` of a
pattern as the remedy.
"""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

GROUP = "dgym.dev"
API_VERSION: Literal["dgym.dev/v1alpha1"] = "dgym.dev/v1alpha1"

INLINE_LIMIT = 200 * 1024
"""Maximum bytes of the inline files of one task. Client-side apply stores the object twice and fails above 256 KiB."""


SET_LABEL = "dgym.dev/set"
INDEX_LABEL = "dgym.dev/index"
SAMPLE_LABEL = "dgym.dev/sample"
ARM_LABEL = "dgym.dev/arm"
TASK_LABEL = "dgym.dev/task"
TASK_UID_LABEL = "dgym.dev/task-uid"
EPISODE_LABEL = "dgym.dev/episode"
ATTEMPT_LABEL = "dgym.dev/attempt"
KEY_LABEL = "dgym.dev/key"
POOL_LABEL = "dgym.dev/pool"
PROOF_ANNOTATION = "dgym.dev/proof"
SANDBOX_POOL_LABEL = "dgym.dev/sandbox-pool"
TEMPLATE_HASH_ANNOTATION = "dgym.dev/pod-template-hash"
CLAIMED_ANNOTATION = "dgym.dev/claimed"
BENCHMARK_LABEL = "dgym.dev/benchmark"
REPOSITORY_LABEL = "dgym.dev/repository"
DIFFICULTY_LABEL = "dgym.dev/difficulty"
DRIVER_LABEL = "dgym.dev/driver"
LEFT_OUT_ANNOTATION = "dgym.dev/left-out"
RETRY_KEY = "dgym.dev/retry"
"""Labels and annotations of the objects that dgym creates."""


class ManifestStruct(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Base class of all parts of manifests.

    Unknown fields are errors. Names are camelCase in files, snake_case in Python.
    """


Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        description="lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit",
    ),
]
DnsLabel = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit",
    ),
]
Label = Annotated[
    str,
    msgspec.Meta(
        max_length=63,
        pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        description="at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    ),
]
LabelKey = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=317,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="a label key such as 'team' or 'example.com/team'",
    ),
]
Token = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.:]*$",
        description="a name of letters, digits, '_', '-', '.' and ':'",
    ),
]
VariableName = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="letters, digits and '_', not beginning with a digit",
    ),
]
RelativePath = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=1024,
        pattern=r"^[^/\x00][^\x00]*$",
        description="a path relative to the repository's root, such as 'src/calc.py'",
    ),
]
AbsolutePath = Annotated[
    str,
    msgspec.Meta(
        min_length=1, max_length=1024, pattern=r"^/[^\x00]*$", description="an absolute path, such as '/workspace'"
    ),
]
Line = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Temperature = Annotated[
    str, msgspec.Meta(max_length=16, pattern=r"^[0-9]+(\.[0-9]+)?$", description='a number in quotes ("0.2")')
]
Cost = Annotated[
    str,
    msgspec.Meta(
        max_length=24,
        pattern=r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)$",
        description='a number above 0, in quotes ("2.50")',
    ),
]
Paid = Annotated[str, msgspec.Meta(max_length=32)]
"""A cost as a decimal number. Empty if the cost is unknown."""
TestId = Annotated[
    str,
    msgspec.Meta(
        max_length=4096,
        pattern=r"^[\s\S]+::[\s\S]+$",
        description="a test's id as 'pytest --collect-only -q' prints it, such as 'tests/test_a.py::test_b'",
    ),
]
Text = Annotated[str, msgspec.Meta(max_length=65536)]
LargeText = Annotated[str, msgspec.Meta(max_length=1024 * 1024)]
Url = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=2048,
        pattern=r"^[a-z][a-z0-9+.-]*:\S+$",
        description="an address with its scheme, such as 'https://example.com/repository.git'",
    ),
]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$", description="64 lower-case hexadecimal digits")]
Idle = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
ObservedGeneration = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
CommandSeconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
TtlSeconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 365 * 86400)]
Priority = Annotated[int, msgspec.Meta(ge=-1_000_000_000, le=1_000_000_000)]
Labels = Annotated[dict[LabelKey, Label], msgspec.Meta(max_length=256)]
Annotations = Annotated[dict[LabelKey, Annotated[str, msgspec.Meta(max_length=262144)]], msgspec.Meta(max_length=256)]
QuantityText = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$",
        description="a whole number or a quantity in quotes, such as 2, '500m' or '1Gi'",
    ),
]
Quantities = Annotated[dict[LabelKey, QuantityText | Count], msgspec.Meta(max_length=16)]

Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]


class OwnerReference(ManifestStruct, frozen=True, kw_only=True):
    """An owner of this object. Kubernetes deletes the object after its owner was deleted."""

    api_version: Line
    kind: Token
    name: Name
    uid: Token
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(ManifestStruct, frozen=True, kw_only=True):
    """Metadata, with the fields that the API server adds, so that the output of ``kubectl get -o yaml`` can be read."""

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


class Condition(ManifestStruct, frozen=True, kw_only=True):
    """A condition of an object, as in Kubernetes. ``type`` is the key of the list.

    Attributes:
        type: Type of the condition, such as Finished.
        status: True, False or Unknown.
        reason: Reason for the status as one word in CamelCase, for programs.
        message: Explanation of the status, for people.
        last_transition_time: When the status last changed.
        observed_generation: Generation of the object for which the condition was set.
    """

    type: Token
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    message: Annotated[str, msgspec.Meta(max_length=32768)] = ""
    last_transition_time: Timestamp | None = None
    observed_generation: Count | None = None


Conditions = Annotated[tuple[Condition, ...], msgspec.Meta(max_length=16)]

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([KMGTPE]i)|[eE]([0-9]+)|([numkMGTPE]?))")


def parse_quantity(text: str | int) -> Decimal:
    """Return the value of a Kubernetes quantity (2, "500m", "1Gi") in its base unit (bytes, cores).

    Raises:
        ValueError: The text is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as '500m', '2' or '1Gi'")
    number, binary, exponent, suffix = match.groups()
    if binary:
        return Decimal(number) * Decimal(1024) ** _BINARY[binary]
    return Decimal(number).scaleb(int(exponent) if exponent else _DECIMAL[suffix or ""])
