"""What an agent pod is told by its environment."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dgym.errors import ManifestError
from dgym.workspace.sources import SourceHosts

PREFIX = "DGYM_AGENT_"


class AgentSettings(BaseSettings):
    """Each is an environment variable: the prefix ``DGYM_AGENT_`` and the name in capitals.

    Models are configured where ``LLM_CONFIG_FILE_PATH`` says; a bucket's endpoint, region and credentials are the
    ``AWS_*`` variables.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    host: str = Field(default="0.0.0.0", description="address to listen on")  # noqa: S104 - guarded by tokens and NetworkPolicy
    port: int = Field(
        default=8081, ge=0, le=65535, description="port to listen on; 0 takes a free one and says so in the log"
    )
    slots: int = Field(default=16, ge=1, le=10_000, description="episodes at the same time")
    results: str = Field(
        default="/var/lib/dgym/results", min_length=1, description="results store: a directory or s3://BUCKET/PREFIX"
    )
    tokens_directory: Path = Field(
        default=Path("/run/dgym/tokens"), description="holds assign-token-sha256 and results-token-sha256"
    )
    source_hosts: str = Field(
        default="",
        description="hosts that git and archive sources may come from: HOST, HOST:PORT, *.DOMAIN or *, with commas",
    )
    cache_directory: Path = Field(default=Path("/var/cache/dgym"), description="packed sources")
    cache_limit_bytes: int = Field(default=10 * 1024**3, ge=0, description="what packed sources may take together")
    drain_seconds: float = Field(default=600.0, ge=0, description="how long running episodes may go on after SIGTERM")
    store_retry_seconds: float = Field(
        default=30.0, gt=0, description="longest pause between tries while the results store does not answer"
    )
    store_patience_seconds: float = Field(
        default=600.0,
        ge=0,
        description="how long the results store is asked again once the episode's pod is gone, too",
    )
    sandbox_silence_seconds: float = Field(
        default=60.0,
        gt=0,
        description="how long a sidecar that does not answer is asked again before it counts as lost",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="what is logged")
    pod_name: str = Field(default="", description="name of this pod, for logs")

    @field_validator("source_hosts")
    @classmethod
    def _check_hosts(cls, value: str) -> str:
        try:
            SourceHosts.parse(value)
        except ManifestError as error:
            raise ValueError(str(error)) from None
        return value
