"""The pod of an attempt: created from the Episode and its task as they are now, recognized if it exists.

A cause that passes by itself is waited for: an overloaded server, a conflict with another writer, an admission plugin
whose caches lag, a default that an administrator is about to correct. A refusal is final only if it would be repeated
in an hour. The causes of 403 and 422 differ in the texts of the API server alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgym.api import (
    ARM_LABEL,
    BENCHMARK_LABEL,
    INDEX_LABEL,
    KEY_LABEL,
    PROOF_ANNOTATION,
    SAMPLE_LABEL,
    SET_LABEL,
    TASK_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    DebugTask,
    Episode,
    EpisodeSpec,
    ObjectMeta,
)
from dgym.kube import (
    PODS,
    AlreadyExists,
    ApiError,
    BadRequest,
    Client,
    ConnectionLost,
    Forbidden,
    Invalid,
    NotFound,
)
from dgym.wire.http import token_digest
from dgym.wire.messages import EndReason
from dgym_operator.actions.claims import POOLED_SECONDS, PoolClaims
from dgym_operator.actions.networkpolicy import NetworkPolicies
from dgym_operator.actions.permissions import find_refusal_by_policy, find_refusal_of_pod, inherited
from dgym_operator.actions.reader import ApiReader, Unmet
from dgym_operator.actions.room import explained, is_limit_range
from dgym_operator.actions.secrets import key_id
from dgym_operator.actions.writes import Writes, controller_reference
from dgym_operator.objects import Pod, SandboxPoolView
from dgym_operator.pooled import QUEUE_LABEL, bind_token, pool_identity, template_hash, unbound
from dgym_operator.proof import make_proof, proof_is_valid
from dgym_operator.render import PodContext, Renderer, TemplateError, token_digests
from dgym_operator.settings import Settings

_LAGGING = (
    "status unknown for quota",
    "error looking up service account",
    "not yet ready to handle request",
    "cannot find RESTMapping",  # for seconds after the definitions were installed
)
"""Texts of admission plugins whose caches lack an object that exists or is about to."""
_RBAC = " cannot "
_LIMIT_BELOW_REQUEST = ("must be less than or equal to ", " limit")
_TOO_LARGE = 413
_INHERITED = (SET_LABEL, INDEX_LABEL, SAMPLE_LABEL, ARM_LABEL, TASK_LABEL, BENCHMARK_LABEL)


class Gone(Exception):
    """The Episode or its namespace is being deleted: its pod is not needed any more."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PodMaker:
    """Creates the pods of attempts."""

    client: Client
    writes: Writes
    reader: ApiReader
    policies: NetworkPolicies
    renderer: Renderer
    settings: Settings
    key: bytes
    claims: PoolClaims

    async def create(self, episode: Episode, *, name: str, attempt: int, deadline_seconds: int) -> Pod:
        """Claim a pooled pod for the attempt, or create its pod, or return the one that was created before.

        Raises:
            Unmet: The pod cannot be created now, or ever, by the reason.
            Gone: The pod is not needed any more.
            ConnectionLost: There was no answer; the pod may exist.
        """
        namespace = episode.metadata.namespace or ""
        task = await self.reader.task(episode)
        refused = find_refusal_by_policy(episode, task, self.settings)
        if refused is not None:
            raise Unmet(EndReason.INVALID_SPEC, refused)
        # What the agent will be sent is checked now: an attempt without sources must not take a node.
        await self.reader.with_files(task)
        manifest = self._manifest(episode, task, name=name, attempt=attempt, deadline_seconds=deadline_seconds)
        claimed = await self.claims.claim(manifest, deadline_seconds=deadline_seconds)
        if claimed is not None:
            return claimed
        try:
            return await self._create(manifest)
        except AlreadyExists:
            return await self._recognize(episode, namespace, name, attempt)
        except Unmet as refusal:
            refusal.message = explained(refusal.message, episode, task, self.settings.default_resources)
            raise

    async def _create(self, manifest: Mapping[str, Any]) -> Pod:
        """Create the pod.

        Raises:
            Unmet, Gone, AlreadyExists, ConnectionLost: See ``create`` and ``create_pooled``.
        """
        namespace = manifest["metadata"]["namespace"]
        try:
            await self.policies.ensure(namespace)
            return await self.writes.create(PODS, manifest, decode=Pod, namespace=namespace)
        except (AlreadyExists, ConnectionLost):
            raise
        except ApiError as error:
            raise (find_refusal(error) or Gone()) from error

    async def create_pooled(self, pool: SandboxPoolView, name: str) -> Pod:
        """Create a pod of ``pool``.

        Raises:
            Unmet: The pod cannot be created now, or ever, by the reason.
            Gone: The pool's namespace is being deleted.
            AlreadyExists: There is a pod of that name.
            ConnectionLost: There was no answer; the pod may exist.
        """
        namespace, rendered = pool.metadata.namespace, await self._pooled_manifest(pool, name)
        made_as = template_hash(rendered)
        digest = token_digest(bind_token(self.key, pool_identity(namespace, name)))
        manifest = unbound(rendered, pool=pool.metadata.name, digest=digest)
        identity = pool_identity(namespace, name, made_as)
        proof = make_proof(self.key, manifest["spec"], namespace=namespace, episode_uid=identity, attempt=0)
        metadata = manifest["metadata"]
        metadata["ownerReferences"] = [controller_reference("SandboxPool", pool.metadata.name, pool.metadata.uid)]
        metadata["annotations"] |= {PROOF_ANNOTATION: proof, TEMPLATE_HASH_ANNOTATION: made_as}
        return await self._create(manifest)

    async def hash_of(self, pool: SandboxPoolView) -> str:
        """The template hash of the pool's pods.

        Raises:
            Unmet: There can be none.
        """
        one, other = [template_hash(await self._pooled_manifest(pool, name)) for name in ("one", "other")]
        if one != other:
            message = (
                "the pod template writes the name of the pod or of the episode into other places than the metadata and "
                "the sidecar's variables, so its pods are not interchangeable; use another podTemplate"
            )
            raise Unmet(EndReason.INVALID_SPEC, message)
        return one

    async def _pooled_manifest(self, pool: SandboxPoolView, name: str) -> dict[str, Any]:
        """The pod as that of an Episode with the pool's task, template and overrides."""
        metadata, spec = pool.metadata, pool.spec
        episode = Episode(
            metadata=ObjectMeta(name=name, namespace=metadata.namespace, uid=metadata.uid),
            spec=EpisodeSpec(
                task_ref=spec.task_ref,
                pod_template=spec.pod_template,
                pod_overrides=spec.pod_overrides,
                queue_name=spec.queue_name,
            ),
        )
        task = await self.reader.task(episode)
        refused = find_refusal_of_pod(episode, task, self.settings)
        if refused is not None:
            raise Unmet(EndReason.INVALID_SPEC, refused)
        seconds = spec.ttl_seconds + POOLED_SECONDS
        return self._manifest(episode, task, name=name, attempt=1, deadline_seconds=seconds)

    async def _recognize(self, episode: Episode, namespace: str, name: str, attempt: int) -> Pod:
        """The pod of that name, if an earlier call has made it for this very attempt."""
        try:
            pod = await self.client.get(PODS, name, decode=Pod, namespace=namespace)
        except NotFound:
            raise Unmet(EndReason.INTERNAL_ERROR, f"an earlier pod {name} was deleted just now", passes=True) from None
        uid, proof = episode.metadata.uid or "", pod.metadata.annotations.proof
        is_controlled = pod.is_controlled_by(uid)
        if is_controlled and proof_is_valid(self.key, proof, namespace=namespace, episode_uid=uid, attempt=attempt):
            return pod
        owner = pod.metadata.controller
        owned = f"owned by {owner.kind} {owner.name}" if owner is not None else "without an owner"
        if pod.metadata.deletion_timestamp is not None:
            message = f"an earlier pod {name}, {owned}, is still being deleted"
            raise Unmet(EndReason.POD_REJECTED, message, passes=True)
        if is_controlled:
            message = (
                f"a pod {name} that names this Episode as its owner is there already, and the operator has not made it "
                f"(its annotation {PROOF_ANNOTATION} is no proof); delete it: kubectl delete pod {name} -n {namespace}"
            )
            raise Unmet(EndReason.POD_REJECTED, message, passes=True)
        raise Unmet(EndReason.POD_REJECTED, f"a pod {name}, {owned}, is there already; delete it")

    def _manifest(
        self, episode: Episode, task: DebugTask, *, name: str, attempt: int, deadline_seconds: int
    ) -> dict[str, Any]:
        """The manifest of the attempt's pod, with owner and proof."""
        template = episode.spec.pod_template or task.spec.pod_template or self.settings.default_pod_template
        context = self._context(episode, task, name=name, attempt=attempt, deadline_seconds=deadline_seconds)
        try:
            manifest = self.renderer.render(template, context)
        except TemplateError as error:
            raise Unmet(EndReason.INVALID_SPEC, str(error)) from None
        owner = controller_reference("Episode", episode.metadata.name, episode.metadata.uid or "")
        manifest["metadata"]["ownerReferences"] = [owner]
        manifest["metadata"].setdefault("labels", {})[KEY_LABEL] = key_id(self.key)
        proof = make_proof(
            self.key,
            manifest["spec"],
            namespace=context.namespace,
            episode_uid=context.episode_uid,
            attempt=context.attempt,
        )
        annotations = manifest["metadata"].get("annotations") or {}
        manifest["metadata"]["annotations"] = {**annotations, PROOF_ANNOTATION: proof}
        return manifest

    def _context(
        self, episode: Episode, task: DebugTask, *, name: str, attempt: int, deadline_seconds: int
    ) -> PodContext:
        metadata, spec = episode.metadata, episode.spec
        if task.spec.image is None and not self.settings.sandbox_image:
            message = f"task {task.metadata.name} names no image, and this installation has none for such tasks"
            raise Unmet(EndReason.INVALID_SPEC, message)
        uid = metadata.uid or ""
        return PodContext(
            name=name,
            namespace=metadata.namespace or "",
            episode=metadata.name,
            episode_uid=uid,
            attempt=attempt,
            task=task.spec,
            delivered=task.spec.source is not None,
            digests=token_digests(self.key, episode_uid=uid, attempt=attempt),
            labels=_labels(metadata.labels, spec.queue_name) | self._inherited_labels(episode),
            annotations=self._inherited_annotations(episode),
            overrides=spec.pod_overrides,
            active_deadline_seconds=deadline_seconds,
            settings=self.settings,
        )

    def _inherited_labels(self, episode: Episode) -> dict[str, str]:
        """The labels that the administrator lists. What the Episode gives in its overrides takes precedence."""
        given, overrides = episode.metadata.labels, episode.spec.pod_overrides.labels
        return inherited(given, self.settings.inherited_labels, taken=overrides)

    def _inherited_annotations(self, episode: Episode) -> dict[str, str]:
        given, overrides = episode.metadata.annotations, episode.spec.pod_overrides.annotations
        return inherited(given, self.settings.inherited_annotations, taken=overrides)


def _labels(given: Mapping[str, str], queue_name: str | None) -> dict[str, str]:
    """The labels that a pod inherits from its Episode, and that of its queue.

    Others are inherited only if the administrator lists them, and never dgym's: that of drivers would open other
    sandboxes to this one.
    """
    inherited = {name: given[name] for name in _INHERITED if name in given}
    return inherited | ({QUEUE_LABEL: queue_name} if queue_name is not None else {})


def find_refusal(error: ApiError) -> Unmet | None:
    """Why the API server refused a pod, or its namespace's policy; None: the namespace is being deleted."""
    if isinstance(error, NotFound):
        return None
    if isinstance(error, Forbidden):
        return None if error.namespace_terminating else _forbidden(error)
    if isinstance(error, Invalid) and _is_limited_by_default(error):
        message = f"{error.message}; a LimitRange's default limit is below the request: change either"
        return Unmet(EndReason.POD_REJECTED, message, passes=True)
    if isinstance(error, Invalid | BadRequest) or error.status == _TOO_LARGE:
        return Unmet(EndReason.POD_REJECTED, error.message)
    return Unmet(EndReason.INTERNAL_ERROR, str(error), passes=True, retry_after=error.retry_after)


def _forbidden(error: Forbidden) -> Unmet:
    if error.quota:
        return Unmet(EndReason.QUOTA_EXCEEDED, error.message, passes=True)
    if _RBAC in error.message and "User " in error.message:
        # The installation lacks a right, which is no fault of the episode's and may be granted at any time.
        return Unmet(EndReason.INTERNAL_ERROR, error.message, passes=True)
    # A LimitRange is as easily changed as a quota: meanwhile the episodes of a set wait, and do not end one by one.
    passes = is_limit_range(error.message) or any(text in error.message for text in _LAGGING)
    return Unmet(EndReason.POD_REJECTED, error.message, passes=passes)


def _is_limited_by_default(error: Invalid) -> bool:
    """Whether only requests above limits are refused: dgym renders none, so a LimitRange has set those limits."""
    return bool(error.causes) and all(
        cause.field.endswith(".resources.requests") and all(text in cause.message for text in _LIMIT_BELOW_REQUEST)
        for cause in error.causes
    )
