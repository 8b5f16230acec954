"""Being asked to stop, by whatever signal, is Ctrl-C."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``KeyboardInterrupt`` too, so that no sandbox outlives its terminal."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
