"""Creates the pods of attempts and of SandboxPools.

The pod of an attempt is claimed from a sandbox pool, or created from the current Episode and task. If an earlier call
has already created it, that pod is used.

The operator waits for temporary causes: an overloaded server, a conflict with another writer, an admission plugin with
an outdated cache, or a default that an administrator can correct. A refusal is final only if it would still apply an
hour later. Only the message of the API server distinguishes the causes of the statuses 403 and 422.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dgym.api import (
    ARM_LABEL,
    BENCHMARK_LABEL,
    CLAIMED_ANNOTATION,
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
    SANDBOX_POOLS,
    AlreadyExists,
    ApiError,
    BadRequest,
    Client,
    Conflict,
    ConnectionLost,
    Forbidden,
    Invalid,
    Key,
    NotFound,
)
from dgym.logs import fields
from dgym.wire import EndReason
from dgym.wire.http import token_digest
from dgym_operator.actions._networkpolicy import NetworkPolicies
from dgym_operator.actions._reader import ApiReader, Unmet
from dgym_operator.actions._refusals import (
    explained,
    find_refusal_by_policy,
    find_refusal_of_pod,
    inherited,
    is_limit_range,
)
from dgym_operator.actions._secrets import key_id
from dgym_operator.actions._writes import Writes, controller_reference
from dgym_operator.cache import Cache
from dgym_operator.controllers import Action, CreatePooledPod, DeletePod, PatchSandboxPoolStatus, Plan, sidecar_url
from dgym_operator.objects import Pod, SandboxPoolView
from dgym_operator.pod_identity import (
    QUEUE_LABEL,
    bind_token,
    make_proof,
    pool_identity,
    proof_is_valid,
    template_hash,
    unbound,
)
from dgym_operator.render import PodContext, Renderer, TemplateError, token_digests
from dgym_operator.settings import Settings

_log = logging.getLogger(__name__)
_LAGGING = (
    "status unknown for quota",
    "error looking up service account",
    "not yet ready to handle request",
    "cannot find RESTMapping",  # for a few seconds after the CRDs were installed
)
"""Messages of admission plugins whose caches do not contain a new object yet."""
_RBAC = " cannot "
_LIMIT_BELOW_REQUEST = ("must be less than or equal to ", " limit")
_TOO_LARGE = 413
_INHERITED = (SET_LABEL, INDEX_LABEL, SAMPLE_LABEL, ARM_LABEL, TASK_LABEL, BENCHMARK_LABEL)
POOLED_SECONDS = 7 * 86_400
"""Deadline of a pooled pod in addition to its ``ttlSeconds``. A claim can lower the deadline but cannot raise it."""
_CLAIM_TRIES = 3
"""Number of pods that are tried for a claim before a new pod is created."""
_SUFFIX_BYTES = 4
"""Random bytes at the end of the name of a pooled pod."""
_LONGEST_PREFIX = 50
"""Maximum number of characters of the pool's name in the name of a pooled pod."""


class Gone(Exception):
    """The Episode or its namespace is being deleted, so its pod is no longer needed."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SandboxPoolClaims:
    """Claims pods of sandbox pools. ``missed`` enqueues a sandbox pool in which an attempt did not find a pod."""

    cache: Cache
    writes: Writes
    missed: Callable[[Key], None]

    async def claim(self, manifest: Mapping[str, Any], *, deadline_seconds: int) -> Pod | None:
        """Claim an idle pod that is equivalent to the pod of ``manifest``. Returns None if none could be claimed.

        Raises:
            ApiError: The API server cannot be reached, or refuses the claim.
        """
        namespace = manifest["metadata"]["namespace"]
        if not self.cache.sandbox_pools_by_namespace.count(namespace) or deadline_seconds > POOLED_SECONDS:
            return None
        wanted = template_hash(manifest)
        for pod in list(self._candidates(namespace, wanted))[:_CLAIM_TRIES]:
            patch = claim_patch(pod, manifest, now=self.cache.clock.now(), deadline_seconds=deadline_seconds)
            try:
                claimed = await self.writes.patch(PODS, pod.metadata.name, patch, decode=Pod, namespace=namespace)
            except (Conflict, NotFound):
                continue
            self._record(pod)
            return claimed
        self._record_miss(namespace, wanted)
        return None

    def _candidates(self, namespace: str, wanted: str) -> Iterator[Pod]:
        """Yield the idle pods with this hash. The oldest is first, because it expires first."""
        found = self.cache.idle_pods[namespace, wanted]
        idle = (pod for pod in found if sidecar_url(pod) and self.cache.is_of_sandbox_pool(pod))
        yield from sorted(idle, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def _record(self, pod: Pod) -> None:
        owner = pod.metadata.controller
        pool = self.cache.sandbox_pools.get((pod.metadata.namespace, owner.name)) if owner is not None else None
        if owner is not None and pool is not None:
            self.cache.memory.sandbox_pools[owner.uid].record_claim(self.cache.clock.now(), pool.status.claimed)

    def _record_miss(self, namespace: str, wanted: str) -> None:
        """Record a miss for each pool whose pods have this hash, because it may keep too few pods."""
        for pool in self.cache.sandbox_pools_by_namespace[namespace]:
            known = self.cache.memory.sandbox_pools[pool.metadata.uid]
            if known.template_hash == wanted:
                known.misses.append(self.cache.clock.now())
                self.missed(pool.key)


def claim_patch(pod: Pod, manifest: Mapping[str, Any], *, now: datetime, deadline_seconds: int) -> dict[str, Any]:
    """Return the merge patch that turns ``pod`` into the pod of ``manifest``.

    ``deadline_seconds`` counts from now. The field in the patch counts from the start of the pod, so its age is added.
    """
    metadata, wanted = pod.metadata, manifest["metadata"]
    age = (now - metadata.creation_timestamp).total_seconds() if metadata.creation_timestamp is not None else 0.0
    return {
        "metadata": {
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
            "ownerReferences": wanted["ownerReferences"],
            "labels": wanted["labels"],
            "annotations": {
                PROOF_ANNOTATION: wanted["annotations"][PROOF_ANNOTATION],
                CLAIMED_ANNOTATION: now.isoformat(timespec="milliseconds"),
            },
        },
        "spec": {"activeDeadlineSeconds": int(age) + deadline_seconds},
    }


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
    claims: SandboxPoolClaims

    async def create(self, episode: Episode, *, name: str, attempt: int, deadline_seconds: int) -> Pod:
        """Claim a pooled pod for the attempt, or create its pod, or return the pod that an earlier call created.

        Raises:
            Unmet: The pod cannot be created now or at all.
            Gone: The pod is no longer needed.
            ConnectionLost: The API server did not answer. The pod may exist.
        """
        namespace = episode.metadata.namespace or ""
        task = await self.reader.task(episode)
        refused = find_refusal_by_policy(episode, task, self.settings)
        if refused is not None:
            raise Unmet(EndReason.INVALID_SPEC, refused)
        # Check that the files exist before the pod is created: an attempt without sources must not use a node.
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
        """Create the pod. It raises the exceptions of ``create_pooled``."""
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
            Unmet: The pod cannot be created now or at all.
            Gone: The pool's namespace is being deleted.
            AlreadyExists: A pod with this name exists.
            ConnectionLost: The API server did not answer. The pod may exist.
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
        """Return the template hash of the pool's pods.

        Raises:
            Unmet: The pod cannot be rendered, or the pods of this template are not interchangeable.
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
        """Return the manifest of the pod that an Episode with the pool's task, template and overrides would have."""
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
        """Return the existing pod with this name if an earlier call created it for this attempt.

        Raises:
            Unmet: The pod belongs to something else, or is gone again.
        """
        try:
            pod = await self.client.get(PODS, name, decode=Pod, namespace=namespace)
        except NotFound:
            raise Unmet(
                EndReason.INTERNAL_ERROR, f"an earlier pod {name} was deleted just now", is_temporary=True
            ) from None
        uid, proof = episode.metadata.uid or "", pod.metadata.annotations.proof
        is_controlled = pod.is_controlled_by(uid)
        if is_controlled and proof_is_valid(self.key, proof, namespace=namespace, episode_uid=uid, attempt=attempt):
            return pod
        owner = pod.metadata.controller
        owned = f"owned by {owner.kind} {owner.name}" if owner is not None else "without an owner"
        if pod.metadata.deletion_timestamp is not None:
            message = f"an earlier pod {name}, {owned}, is still being deleted"
            raise Unmet(EndReason.POD_REJECTED, message, is_temporary=True)
        if is_controlled:
            message = (
                f"a pod {name} that names this Episode as its owner already exists, and the operator did not create it "
                f"(its annotation {PROOF_ANNOTATION} is not a valid proof); delete it: "
                f"kubectl delete pod {name} -n {namespace}"
            )
            raise Unmet(EndReason.POD_REJECTED, message, is_temporary=True)
        raise Unmet(EndReason.POD_REJECTED, f"a pod {name}, {owned}, already exists; delete it")

    def _manifest(
        self, episode: Episode, task: DebugTask, *, name: str, attempt: int, deadline_seconds: int
    ) -> dict[str, Any]:
        """Return the manifest of the attempt's pod, with owner reference and proof."""
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
            message = f"task {task.metadata.name} has no image, and this installation has no default image"
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
        """Return the Episode's labels that the administrator lists, except those that its overrides set."""
        given, overrides = episode.metadata.labels, episode.spec.pod_overrides.labels
        return inherited(given, self.settings.inherited_labels, taken=overrides)

    def _inherited_annotations(self, episode: Episode) -> dict[str, str]:
        given, overrides = episode.metadata.annotations, episode.spec.pod_overrides.annotations
        return inherited(given, self.settings.inherited_annotations, taken=overrides)


def _labels(given: Mapping[str, str], queue_name: str | None) -> dict[str, str]:
    """Return the labels that every pod inherits from its Episode, and the label of its queue.

    Other labels are inherited only if the administrator lists them. Other labels of dgym are never inherited: the label
    of drivers would allow this sandbox to connect to other sandboxes.
    """
    labels = {name: given[name] for name in _INHERITED if name in given}
    return labels | ({QUEUE_LABEL: queue_name} if queue_name is not None else {})


def find_refusal(error: ApiError) -> Unmet | None:
    """Return why the API server refused a pod or its NetworkPolicy. None if the namespace is being deleted."""
    if isinstance(error, NotFound):
        return None
    if isinstance(error, Forbidden):
        return None if error.namespace_terminating else _forbidden(error)
    if isinstance(error, Invalid) and _is_limited_by_default(error):
        message = f"{error.message}; a LimitRange's default limit is below the request: change one of them"
        return Unmet(EndReason.POD_REJECTED, message, is_temporary=True)
    if isinstance(error, Invalid | BadRequest) or error.status == _TOO_LARGE:
        return Unmet(EndReason.POD_REJECTED, error.message)
    return Unmet(EndReason.INTERNAL_ERROR, str(error), is_temporary=True, retry_after=error.retry_after)


def _forbidden(error: Forbidden) -> Unmet:
    if error.quota:
        return Unmet(EndReason.QUOTA_EXCEEDED, error.message, is_temporary=True)
    if _RBAC in error.message and "User " in error.message:
        # The installation lacks a right. The episode did not cause that, and the right may be granted at any time.
        return Unmet(EndReason.INTERNAL_ERROR, error.message, is_temporary=True)
    # An administrator can change a LimitRange, as a quota. The episodes of a set wait and do not all fail meanwhile.
    is_temporary = is_limit_range(error.message) or any(text in error.message for text in _LAGGING)
    return Unmet(EndReason.POD_REJECTED, error.message, is_temporary=is_temporary)


def _is_limited_by_default(error: Invalid) -> bool:
    """True if the API server refused only requests above limits. dgym never renders those, so a LimitRange set them."""
    return bool(error.causes) and all(
        cause.field.endswith(".resources.requests") and all(text in cause.message for text in _LIMIT_BELOW_REQUEST)
        for cause in error.causes
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SandboxPoolExecutor:
    """Writes SandboxPools and their pods."""

    cache: Cache
    writes: Writes
    pods: PodMaker
    random_bytes: Callable[[int], bytes]

    async def hash_of(self, pool: SandboxPoolView) -> tuple[str, str]:
        """Return the template hash of the pool's pods and an empty text, or an empty hash and the cause."""
        try:
            return await self.pods.hash_of(pool), ""
        except Unmet as unmet:
            return "", unmet.message

    async def apply(self, pool: SandboxPoolView, plan: Plan) -> float | None:
        """Apply the plan. Returns the seconds after which to requeue.

        Raises:
            ApiError: An action failed. Later actions were not applied.
            NotLeading: This replica has lost its Lease. Later actions were not applied.
        """
        for action in plan.actions:
            await self._act(pool, action)
        return plan.requeue_after

    async def _act(self, pool: SandboxPoolView, action: Action) -> None:
        match action:
            case PatchSandboxPoolStatus():
                await self.writes.replace_status(SANDBOX_POOLS, self.cache.sandbox_pools, pool, action.status)
            case DeletePod():
                key = (pool.metadata.namespace, action.name)
                await self.writes.delete(PODS, self.cache.pods, key, action.uid, decode=Pod)
            case CreatePooledPod():
                await self._create(pool)
            case _:
                raise TypeError(f"not an action on a SandboxPool: {action!r}")

    async def _create(self, pool: SandboxPoolView) -> None:
        metadata = pool.metadata
        name = f"{metadata.name[:_LONGEST_PREFIX].rstrip('-.')}-{self.random_bytes(_SUFFIX_BYTES).hex()}"
        about = fields(namespace=metadata.namespace, sandboxpool=metadata.name, pod=name)
        try:
            pod = await self.pods.create_pooled(pool, name)
        except (AlreadyExists, Gone):
            return  # The next decision follows soon and uses another name.
        except Unmet as unmet:
            self.cache.memory.sandbox_pools[metadata.uid].record_failure(name, self.cache.clock.now())
            self.cache.memory.refused[metadata.uid] = unmet.message
            _log.warning("a pod of a sandbox pool could not be created: %s", unmet, extra=about)
            return
        self.cache.memory.refused.pop(metadata.uid, None)
        self.cache.pods.assume(pod)
        _log.info("created a pod of a sandbox pool", extra=about)
