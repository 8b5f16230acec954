"""Entry point of the sidecar container of a pod: ``python -m dgym.sidecar``."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

from dgym.errors import ManifestError
from dgym.sidecar.settings import read_settings


def main() -> int:
    """Serve until the end; return 2 if the settings in the environment are invalid."""
    try:
        settings = read_settings(os.environ)
    except ManifestError as error:
        sys.stderr.write(f"dgym.sidecar: {error}\n")
        return 2
    with _without_tls():
        import asyncio

        from dgym.sidecar._serving import serve

    # The imported modules are never freed, so the garbage collector need not traverse them and touch their pages.
    gc.collect()
    gc.freeze()
    asyncio.run(serve(settings))
    return 0


@contextlib.contextmanager
def _without_tls() -> Iterator[None]:
    """Hide the module ``ssl`` while asyncio and aiohttp are imported. Both work without it.

    The port uses plain HTTP, and OpenSSL with its certificates takes a few megabytes in each pod. Tools can import
    ``ssl`` later as usual.
    """
    if "ssl" in sys.modules:
        yield
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["ssl"]


if __name__ == "__main__":
    sys.exit(main())
