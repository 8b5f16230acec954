"""The keys with which an agent pod authenticates its callers, and their creation.

``python -m dgym.episodes.agent_pod tokens`` runs as the init container. Only this container has the key of the agent
pool. It derives the key of its pod and writes it, with the digest of the results token, into a directory in memory. So
an attacker who controls an agent pod does not get the keys of the other pods of its pool.
"""

import hmac
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dgym.wire.assignments import (
    HOUR_SECONDS,
    POOL_KEY,
    RESULTS_DIGEST,
    AgentPodRole,
    make_agent_pod_key,
    make_assign_token,
)
from dgym.wire.http import token_digest

AGENT_POD_KEY = "agent-key"
"""Name of the file with the key of the pod."""
POOL_DIRECTORY, DIRECTORY = Path("/run/dgym/pool"), Path("/run/dgym/tokens")
_SCHEME = "bearer "
_LENGTH = 64


class Tokens:
    """Checks tokens. The files in ``directory`` are read at every call. ``clock`` returns seconds since 1970."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock

    def allows(self, authorization: str, role: AgentPodRole) -> bool:
        """Whether the header ``Authorization`` has the token of ``role``."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        token = authorization[len(_SCHEME) :].strip()
        return self._is_from_operator(token) if role is AgentPodRole.ASSIGN else self._reads_results(token)

    def _is_from_operator(self, token: str) -> bool:
        key, now = _read(self._directory / AGENT_POD_KEY), int(self._clock()) // HOUR_SECONDS
        if key is None:
            return False
        given = token.encode("utf-8", "surrogateescape")
        hours = (now - 1, now, now + 1)  # The clocks of operator and pod may differ.
        return any(hmac.compare_digest(make_assign_token(key, hour).encode(), given) for hour in hours)

    def _reads_results(self, token: str) -> bool:
        known = _read(self._directory / RESULTS_DIGEST)
        return known is not None and hmac.compare_digest(known, token_digest(token))


def _read(path: Path) -> str | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) == _LENGTH else None


def write_tokens(pool: Path, directory: Path, pod_uid: str) -> None:
    """Write the files of an agent pod, derived from those of its pool.

    Raises:
        ValueError: A file of the pool is missing or invalid, or there is no UID.
    """
    if not pod_uid:
        raise ValueError("DGYM_AGENT_POD_UID is not set: set it to metadata.uid by the downward API")
    found = {name: _read(pool / name) for name in (POOL_KEY, RESULTS_DIGEST)}
    for name, text in found.items():
        if text is None:
            raise ValueError(f"{pool / name} must contain {_LENGTH} hexadecimal digits, as in the operator's Secret")
    written = {
        AGENT_POD_KEY: make_agent_pod_key(found[POOL_KEY] or "", pod_uid),
        RESULTS_DIGEST: found[RESULTS_DIGEST] or "",
    }
    for name, text in written.items():
        path = directory / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
            file.write(text)


def main(environment: Mapping[str, str]) -> int:
    """Write the files. Return the exit status: 2 if they cannot be written."""
    try:
        write_tokens(POOL_DIRECTORY, DIRECTORY, environment.get("DGYM_AGENT_POD_UID", ""))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"dgym.episodes.agent_pod tokens: {error}\n")
        return 2
    return 0
