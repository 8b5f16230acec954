"""Applies plans. Only this package writes to the API server."""

from dgym_operator.actions._episodes import EpisodeExecutor, SetExecutor
from dgym_operator.actions._networkpolicy import NetworkPolicies
from dgym_operator.actions._pods import PodMaker, SandboxPoolClaims, SandboxPoolExecutor
from dgym_operator.actions._reader import ApiReader, Unmet
from dgym_operator.actions._refusals import with_step_limit
from dgym_operator.actions._secrets import KeyUnusable, ensure_secrets, key_id, read_key
from dgym_operator.actions._writes import NotLeading, ProgressBudget, Writes, episode_patch

__all__ = [
    "ApiReader",
    "EpisodeExecutor",
    "KeyUnusable",
    "NetworkPolicies",
    "NotLeading",
    "PodMaker",
    "ProgressBudget",
    "SandboxPoolClaims",
    "SandboxPoolExecutor",
    "SetExecutor",
    "Unmet",
    "Writes",
    "ensure_secrets",
    "episode_patch",
    "key_id",
    "read_key",
    "with_step_limit",
]
