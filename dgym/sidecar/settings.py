"""The settings of a sidecar, from its environment."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dgym.errors import ManifestError
from dgym.wire.http import ANSWER_SECONDS, Role

PREFIX = "DGYM_SIDECAR_"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Each is an environment variable: the prefix ``DGYM_SIDECAR_`` and the name in capitals.

    Attributes:
        prepare_sha256: SHA-256 of the token of the role "prepare", 64 hexadecimal digits. Required.
        drive_sha256: The same for "drive". Required.
        operate_sha256: The same for "operate". Required.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one and names it in the log.
        allow_local_connections: Whether the port accepts connections from its own host; never in a pod, where programs
            of the sandbox are on the same host.
        sandbox_socket: Where the sandbox's runner listens.
        verifier_socket: Where the verifier's runner listens.
        directory: Holds the uploaded workspace, and survives a restart of the container.
        termination_log: Where the container's termination message is written.
        episode: ``namespace/name`` of the episode, for logs.
        episode_uid: Its UID.
        attempt: The number of this attempt.
        answer_seconds: A call that takes longer answers 202; drivers wait 30 s.
        stop_timeout_seconds: How long after its order to end a sandbox may be seen running; more means hijacked.
        confirmation_seconds: How long to wait for the operator's report that the sandbox has ended or still runs; less
            than the day for which the pod's own deadline exceeds the clocks of the episode.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    prepare_sha256: str
    drive_sha256: str
    operate_sha256: str
    host: str = "0.0.0.0"  # noqa: S104 - a pod's only port; NetworkPolicy and tokens guard it
    port: int = 8080
    allow_local_connections: bool = False
    sandbox_socket: Path = Path("/run/dgym/sandbox/runner.sock")
    verifier_socket: Path = Path("/run/dgym/verifier/runner.sock")
    directory: Path = Path("/var/lib/dgym")
    termination_log: Path = Path("/dev/termination-log")
    episode: str = ""
    episode_uid: str = ""
    attempt: int = 1
    answer_seconds: float = ANSWER_SECONDS
    stop_timeout_seconds: float = 30.0
    confirmation_seconds: float = 4 * 3600.0
    log_level: str = "INFO"

    @property
    def digests(self) -> dict[Role, str]:
        """The digest of each role's token."""
        return {
            Role.PREPARE: self.prepare_sha256,
            Role.DRIVE: self.drive_sha256,
            Role.OPERATE: self.operate_sha256,
        }


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in ``environment``.

    Raises:
        ManifestError: One is missing or wrong; the message names the variable, never the value of a digest.
    """
    values = {
        name: environment[variable]
        for name in Settings.__struct_fields__
        if (variable := PREFIX + name.upper()) in environment
    }
    for role in Role:
        name = f"{role}_sha256"
        if not _DIGEST.fullmatch(values.get(name, "")):
            raise ManifestError(f"{PREFIX}{name.upper()} must be a SHA-256: 64 lower-case hexadecimal digits")
    try:
        return msgspec.convert(values, Settings, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        problem = re.sub(r"\$\.(\w+)", lambda match: PREFIX + match[1].upper(), str(error))
        raise ManifestError(f"the sidecar's environment is wrong: {problem}") from None


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
