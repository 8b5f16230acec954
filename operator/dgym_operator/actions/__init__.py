"""Plans applied: the only code that writes to the API server."""

from dgym_operator.actions.claims import PoolClaims
from dgym_operator.actions.drivers import DriverSecrets
from dgym_operator.actions.episodes import EpisodeExecutor
from dgym_operator.actions.episodesets import SetExecutor
from dgym_operator.actions.networkpolicy import NetworkPolicies
from dgym_operator.actions.permissions import with_step_limit
from dgym_operator.actions.pods import PodMaker
from dgym_operator.actions.pools import PoolExecutor
from dgym_operator.actions.reader import ApiReader, Unmet
from dgym_operator.actions.secrets import KeyUnusable, ensure_secrets, key_id, read_key
from dgym_operator.actions.setpools import SetPools
from dgym_operator.actions.writes import NotLeading, ProgressBudget, Writes, episode_patch

__all__ = [
    "ApiReader",
    "DriverSecrets",
    "EpisodeExecutor",
    "KeyUnusable",
    "NetworkPolicies",
    "NotLeading",
    "PodMaker",
    "PoolClaims",
    "PoolExecutor",
    "ProgressBudget",
    "SetExecutor",
    "SetPools",
    "Unmet",
    "Writes",
    "ensure_secrets",
    "episode_patch",
    "key_id",
    "read_key",
    "with_step_limit",
]
