"""What the tools must know of the task."""

import msgspec


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of the tools, from the task; times in seconds.

    ``debug_entrypoint``: what pdb runs, if not ``entrypoint``. ``scored_tests``: the ids that count (empty: every
    test that eval ran and did not skip). ``interpreter``: a Python 3 inside the sandbox for the tools' own helpers.
    """

    entrypoint: str = "python -m pytest -q"
    debug_entrypoint: str | None = None
    entrypoint_timeout_seconds: float = 300.0
    pdb_timeout_seconds: float = 60.0
    bash_timeout_seconds: float = 30.0
    persistent_breakpoints: bool = True
    scored_tests: tuple[str, ...] = ()
    interpreter: str = "python3"
