"""The Secret by which an external driver finds the sidecar of its Episode's attempt: its address and the drive token.

The attempt's pod owns it, as the Episode owns the pod: the token is of this pod alone, and the cluster's garbage
collector deletes both together. So the operator needs the right to create Secrets, and neither to read nor to delete
one.
"""

from dataclasses import dataclass

from dgym.api import ATTEMPT_LABEL, EPISODE_LABEL, driver_secret_name, label_value
from dgym.kube import SECRETS, AlreadyExists
from dgym.wire.http import Role, make_token
from dgym_operator.actions.secrets import SecretData, secret_manifest
from dgym_operator.actions.writes import Writes
from dgym_operator.controllers import CreateDriverSecret
from dgym_operator.objects import EpisodeView


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DriverSecrets:
    """Creates the Secrets of external drivers."""

    writes: Writes
    key: bytes

    async def create(self, episode: EpisodeView, action: CreateDriverSecret) -> str | None:
        """Create the attempt's Secret; returns its name, None: it exists.

        Its name has the Episode's UID in it, so that one of an earlier Episode of the same name is another.
        """
        uid, namespace = episode.metadata.uid, episode.metadata.namespace
        token = make_token(self.key, episode_uid=uid, attempt=action.attempt, role=Role.DRIVE)
        name = driver_secret_name(action.pod_name, uid)
        manifest = secret_manifest(name, namespace, {"url": action.url.encode(), "token": token.encode()})
        metadata = manifest["metadata"]
        metadata["labels"] |= {EPISODE_LABEL: label_value(episode.metadata.name), ATTEMPT_LABEL: str(action.attempt)}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": action.pod_name, "uid": action.pod_uid, "controller": True}
        metadata["ownerReferences"] = [owner]
        try:
            await self.writes.create(SECRETS, manifest | {"immutable": True}, decode=SecretData, namespace=namespace)
        except AlreadyExists:
            return None
        return name
