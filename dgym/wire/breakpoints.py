"""What a debugger knows about places in a program."""

import msgspec


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the program stands. ``file`` is relative to the workspace when it lies inside, else absolute."""

    file: str
    line: int
    function: str


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One breakpoint. Its number belongs to the session: restarts and edits keep it.

    ``file`` is relative to the workspace when it lies inside, else absolute; ``line`` counts from 1;
    ``ignore_count`` is the count as set (not what is left of it); ``hits`` counts over all restarts.
    """

    number: int
    file: str
    line: int
    condition: str | None = None
    ignore_count: int = 0
    hits: int = 0
    enabled: bool = True
    temporary: bool = False
