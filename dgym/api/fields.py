"""Vocabulary shared by all kinds: the base of every struct, and bounded types with the sentence that explains them.

Every string, list and number is bounded, because the same structs become the schemas of the custom resources, and the
API server estimates the cost of a rule from the bounds. ``description`` of a pattern is what an error shows as remedy.
"""

from typing import Annotated, Literal

import msgspec

GROUP = "dgym.dev"
API_VERSION: Literal["dgym.dev/v1alpha1"] = "dgym.dev/v1alpha1"

INLINE_LIMIT = 200 * 1024
"""Bytes of inline files in one task; client-side apply stores the object a second time and fails above 256 KiB."""


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Base of all parts of manifests: camelCase in files, snake_case in Python, unknown fields are errors."""


Name = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        description="lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit",
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
TestId = Annotated[
    str,
    msgspec.Meta(
        max_length=4096,
        pattern=r"^.+::.+$",
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
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
CommandSeconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
TtlSeconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 365 * 86400)]
Priority = Annotated[int, msgspec.Meta(ge=-1_000_000_000, le=1_000_000_000)]
Labels = Annotated[dict[LabelKey, Label], msgspec.Meta(max_length=256)]
Annotations = Annotated[dict[LabelKey, Annotated[str, msgspec.Meta(max_length=262144)]], msgspec.Meta(max_length=256)]
Quantities = Annotated[
    dict[
        LabelKey,
        Annotated[
            str,
            msgspec.Meta(
                min_length=1,
                max_length=64,
                pattern=r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$",
                description="a quantity in quotes, such as '500m', '2' or '1Gi'",
            ),
        ],
    ],
    msgspec.Meta(max_length=16),
]
