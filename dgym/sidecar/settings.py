"""The settings of a sidecar, read from environment variables."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dgym.errors import ManifestError
from dgym.wire.http import ANSWER_SECONDS, BindRequest, Role

PREFIX = "DGYM_SIDECAR_"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The fields are environment variables: the prefix ``DGYM_SIDECAR_`` and the name in capitals.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port, which is logged.
        allow_local_connections: Whether the port accepts connections from its own host; never in a pod, where programs
            of the sandbox are on the same host.
        sandbox_socket: Socket of the sandbox's runner.
        verifier_socket: Socket of the verifier's runner.
        directory: Directory of the uploaded workspace. It survives a restart of the container.
        termination_log: File of the container's termination message.
        answer_seconds: A call that takes longer answers 202; drivers wait 30 s.
        stop_timeout_seconds: Time in which a sandbox may still run after its order to end. A sandbox that runs longer
            counts as hijacked.
        confirmation_seconds: How long to wait for the operator's report that the sandbox has ended or still runs; less
            than the day for which the pod's own deadline exceeds the clocks of the episode.
        log_level: DEBUG, INFO, WARNING or ERROR.
    """

    host: str = "0.0.0.0"  # noqa: S104 - a pod's only port; NetworkPolicy and tokens guard it
    port: int = 8080
    allow_local_connections: bool = False
    sandbox_socket: Path = Path("/run/dgym/sandbox/runner.sock")
    verifier_socket: Path = Path("/run/dgym/verifier/runner.sock")
    directory: Path = Path("/var/lib/dgym")
    termination_log: Path = Path("/dev/termination-log")
    answer_seconds: float = ANSWER_SECONDS
    stop_timeout_seconds: float = 30.0
    confirmation_seconds: float = 4 * 3600.0
    log_level: str = "INFO"


class Settings(ProcessSettings, frozen=True, kw_only=True):
    """The settings of a sidecar that was started for an attempt.

    Attributes:
        prepare_sha256: SHA-256 of the token of the role "prepare", 64 hexadecimal digits. Required.
        drive_sha256: The same for "drive". Required.
        operate_sha256: The same for "operate". Required.
        episode: ``namespace/name`` of the episode, for logs.
        episode_uid: Its UID.
        attempt: The number of this attempt.
    """

    prepare_sha256: str
    drive_sha256: str
    operate_sha256: str
    episode: str = ""
    episode_uid: str = ""
    attempt: int = 1

    @property
    def digests(self) -> dict[Role, str]:
        """SHA-256 of the token of each role."""
        return {
            Role.PREPARE: self.prepare_sha256,
            Role.DRIVE: self.drive_sha256,
            Role.OPERATE: self.operate_sha256,
        }


class PooledSettings(ProcessSettings, frozen=True, kw_only=True):
    """The settings of a sidecar that is bound to its attempt later, by ``POST /v1/bind``.

    Attributes:
        bind_sha256: SHA-256 of the token that signs this call, 64 hexadecimal digits. Required.
    """

    bind_sha256: str

    def bound(self, request: BindRequest) -> Settings:
        """Return the settings of the attempt that ``request`` names."""
        own = {name: getattr(self, name) for name in ProcessSettings.__struct_fields__}
        return Settings(**own, **msgspec.structs.asdict(request))


_DIGESTS: dict[type[Settings | PooledSettings], tuple[str, ...]] = {
    Settings: tuple(f"{role}_sha256" for role in Role),
    PooledSettings: ("bind_sha256",),
}
_ATTEMPT_FIELDS = (*_DIGESTS[Settings], "episode", "episode_uid", "attempt")


def read_settings(environment: Mapping[str, str]) -> Settings | PooledSettings:
    """Read the settings from ``environment``.

    Raises:
        ManifestError: A setting is missing or invalid. The message names the variable, never the value of a digest.
    """
    kind = _kind(environment)
    values = {
        name: environment[variable] for name in kind.__struct_fields__ if (variable := _variable(name)) in environment
    }
    for name in _DIGESTS[kind]:
        if not _DIGEST.fullmatch(values.get(name, "")):
            raise ManifestError(f"{_variable(name)} must be a SHA-256: 64 lower-case hexadecimal digits")
    try:
        return msgspec.convert(values, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        problem = re.sub(r"\$\.(\w+)", lambda match: _variable(match[1]), str(error))
        raise ManifestError(f"the sidecar's environment is invalid: {problem}") from None


def _kind(environment: Mapping[str, str]) -> type[Settings | PooledSettings]:
    """Return the class of the settings: ``PooledSettings`` for a sidecar of a sandbox pool."""
    bind = _variable("bind_sha256")
    if bind in environment:
        if known := [each for name in _ATTEMPT_FIELDS if (each := _variable(name)) in environment]:
            raise ManifestError(f"{bind} is for a sidecar that is bound later; remove it, or {', '.join(known)}")
        return PooledSettings
    digests = [_variable(name) for name in _DIGESTS[Settings]]
    if not any(each in environment for each in digests):
        raise ManifestError(f"set {bind} for a pooled sidecar, or else {', '.join(digests)}")
    return Settings


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)
