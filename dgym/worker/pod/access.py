"""Who may call an agent: two tokens, of which the pod knows SHA-256 digests alone."""

import hmac
from pathlib import Path

from dgym.wire.assignments import AgentRole
from dgym.wire.http import token_digest

_SCHEME = "bearer "
_FILES = {AgentRole.ASSIGN: "assign-token-sha256", AgentRole.RESULTS: "results-token-sha256"}


class Tokens:
    """The digests in ``directory``, read at every call: the Secret may come late, and may change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def allows(self, authorization: str, role: AgentRole) -> bool:
        """Whether the header ``Authorization`` holds the token of ``role``."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return False
        digest = token_digest(authorization[len(_SCHEME) :].strip())
        known = self._read(role)
        return known is not None and hmac.compare_digest(known, digest)

    def _read(self, role: AgentRole) -> str | None:
        try:
            known = (self._directory / _FILES[role]).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return known if len(known) == 64 else None
