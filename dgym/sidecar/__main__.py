"""``python -m dgym.sidecar``: what a pod's sidecar container runs."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

from dgym.errors import ManifestError
from dgym.sidecar.settings import read_settings


def main() -> int:
    """Serve; 2 when the environment is wrong."""
    try:
        settings = read_settings(os.environ)
    except ManifestError as error:
        sys.stderr.write(f"dgym.sidecar: {error}\n")
        return 2
    with _without_tls():
        import asyncio

        from dgym.sidecar.serving import serve

    # The imported modules stay: no collection needs to walk through them, which also leaves their pages alone.
    gc.collect()
    gc.freeze()
    asyncio.run(serve(settings))
    return 0


@contextlib.contextmanager
def _without_tls() -> Iterator[None]:
    """Let asyncio and aiohttp find no ``ssl``, which both can do without.

    The port speaks plain HTTP, and in ten thousand pods a few megabytes of OpenSSL and of certificates are many. A tool
    that needs it imports it later, as ever.
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
