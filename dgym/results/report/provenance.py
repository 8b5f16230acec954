"""What two compared runs do not have in common of what their results record: versions, digests, parameters."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from dgym.results.attempts import StoredResult
from dgym.wire.provenance import Provenance

DISTRIBUTIONS = "distributions"
_MISSING = "-"
_CHARACTERS = 60
"""Of a value in a sentence."""
_SHOWN = 12
_PACKAGES = 3

Facts = Mapping[str, str]
"""Values by name, such as ``interpreter`` and ``sampling temperature``; the distributions are lines of one text."""


class ProvenanceDifference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A recorded value that differs between A and B in ``tasks`` tasks; ``a`` and ``b`` are those of the first task."""

    name: str
    a: str
    b: str
    tasks: int


def facts_of(result: StoredResult) -> Facts | None:
    """The recorded values of a result; None where it records none, as results of earlier versions do."""
    found = result.provenance
    if found is None:
        return None
    facts = {"agent": result.agent, **dict(_facts(found))}
    # Thousands of episodes share few different texts.
    return {sys.intern(name): sys.intern(value) for name, value in facts.items() if value}


def _facts(found: Provenance) -> Iterator[tuple[str, str]]:
    yield "dgym", found.dgym_version
    yield "commit of dgym", found.dgym_commit
    yield "sandbox", found.sandbox
    yield "image", found.image
    if (reported := found.reported_by_sandbox) is not None:
        yield "interpreter", reported.interpreter
        lines = [f"{name} {version}" for name, version in reported.distributions.items()]
        # A digest of distributions that are not listed decides where the list has been cut.
        yield (
            DISTRIBUTIONS,
            "\n".join([*lines, *([f"others {reported.distributions_digest}"] * bool(reported.left_out))]),
        )
    yield "task digest", found.task_digest
    yield from (("parameter " + name, _text(value)) for name, value in found.parameters.items())
    yield from (("prompt " + name, value) for name, value in found.prompts.items())
    if (model := found.model) is not None:
        yield "model", model.requested
        yield from (("sampling " + name, _text(value)) for name, value in model.sampling.items())
        yield from (("price " + name, value) for name, value in model.prices.items())
        yield "served model", ", ".join(model.served)
        yield "system fingerprint", ", ".join(model.system_fingerprints)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def differing(common: Sequence[tuple[Sequence[Facts], Sequence[Facts]]]) -> tuple[ProvenanceDifference, ...]:
    """The values in which A and B differ; ``common`` has the facts of the episodes of both sides, by task."""
    first: dict[str, tuple[str, str]] = {}
    tasks: dict[str, int] = {}
    for a, b in common:
        names = dict.fromkeys(name for facts in (*a, *b) for name in facts)
        for name in names if a and b else ():
            values = _values(name, a), _values(name, b)
            if values[0] != values[1]:
                first.setdefault(name, values)
                tasks[name] = tasks.get(name, 0) + 1
    return tuple(
        ProvenanceDifference(name=name, a=a, b=b, tasks=tasks[name])
        for name, (a, b) in ((name, _brief(name, *values)) for name, values in first.items())
    )


def _values(name: str, side: Sequence[Facts]) -> str:
    """The value of a side; several are joined, as samples of one task may differ."""
    return " and ".join(sorted({facts.get(name, _MISSING) for facts in side}))


def _brief(name: str, a: str, b: str) -> tuple[str, str]:
    if name != DISTRIBUTIONS:
        return _short(a), _short(b)
    lines_a, lines_b = set(a.split("\n")), set(b.split("\n"))
    return _packages(lines_a - lines_b), _packages(lines_b - lines_a)


def _packages(lines: set[str]) -> str:
    shown = ", ".join(_short(line) for line in islice(sorted(lines), _PACKAGES))
    return (f"{shown} and {len(lines) - _PACKAGES} more" if len(lines) > _PACKAGES else shown) or _MISSING


def _short(text: str) -> str:
    digest = len(text) in (40, 64) and not set(text) - set("0123456789abcdef")
    if digest:
        return text[:12]
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"


def sentence(differences: Sequence[ProvenanceDifference], a: str, b: str) -> str:
    """The differences in one sentence; empty without any."""
    if not differences:
        return ""
    parts = [
        f"{one.name} {one.a} / {one.b}" + (f" (in {one.tasks} tasks)" if one.tasks > 1 else "")
        for one in differences[:_SHOWN]
    ]
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return f"{a} and {b} differ in: {'; '.join(parts)}{more}."
