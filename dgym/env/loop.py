"""One event loop in one daemon thread for all blocking environments of this process.

A loop of the caller's own may run already (a notebook), so blocking calls cannot use it. One thread for the whole
process, never ended: bubblewrap's ``--die-with-parent`` kills a sandbox when the *thread* that started it ends.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_loop_process = 0


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` in the shared loop and wait for it; an interrupt (Ctrl-C) cancels it there too."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _shared_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _shared_loop() -> asyncio.AbstractEventLoop:
    """The loop, made on first use and again after a fork, which threads do not survive."""
    global _loop, _loop_process
    with _lock:
        if _loop is None or _loop_process != os.getpid():
            _loop = asyncio.new_event_loop()
            _loop_process = os.getpid()
            threading.Thread(target=_loop.run_forever, name="dgym-loop", daemon=True).start()
        return _loop
