"""``agent.parameters`` of the agents that think."""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from dgym.errors import ManifestError

_SNAKE = re.compile(r"_([a-z0-9])")


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a manifest may say about an agent that thinks.

    ``memory_size`` steps are in the prompt word for word; ``reset_history_after_rewrite`` forgets them at each change
    of a file. ``eval_on_reset`` and ``eval_on_rewrite`` run the task's tests without a call. ``tree_depth`` levels of
    the repository are shown. ``system_prompt`` and ``task_prompt`` are templates in place of dgym's own: paths, from
    the manifest's directory.
    """

    memory_size: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    reset_history_after_rewrite: bool = False
    eval_on_reset: bool = True
    eval_on_rewrite: bool = True
    tree_depth: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    system_prompt: str | None = None
    task_prompt: str | None = None


S = TypeVar("S", bound=Settings)


def read_settings(kind: type[S], parameters: Mapping[str, Any], *, agent: str) -> S:
    """``parameters`` as settings; names may be written in snake_case too.

    Raises:
        ManifestError: A name is unknown, or a value is wrong.
    """
    given = {_SNAKE.sub(lambda match: match[1].upper(), name): value for name, value in parameters.items()}
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are: {', '.join(known)}"
            raise ManifestError(f"agent {agent} has no parameter {name!r}; {hint}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise ManifestError(f"agent.parameters.{place.rstrip('`')} of agent {agent}: {what}") from None
