"""Scoring plans from keywords of ``scoring``, without a manifest."""

from dgym.api import DebugTaskSpec, InlineFile, Scoring
from dgym.session.scoring import ScoringPlan

PYTEST = "python -m pytest -q"


def make_plan(entrypoint=PYTEST, changed=None, *, timeout_seconds=300, build_commands=(), hidden_files=None, **more):
    """Make a plan. ``more`` are fields of ``Scoring`` or of the plan, ``hidden_files`` maps paths to versions."""
    own = {name: more.pop(name) for name in ScoringPlan.__struct_fields__ if name in more}
    hidden = tuple(
        InlineFile(path=path, content=version.data.decode(), mode=version.mode)
        for path, version in (hidden_files or {}).items()
    )
    spec = DebugTaskSpec(
        entrypoint=entrypoint,
        entrypoint_timeout_seconds=timeout_seconds,
        build_commands=build_commands,
        scoring=Scoring(hidden_files=hidden, **more),
    )
    return ScoringPlan(spec=spec, changed=changed or {}, **own)
