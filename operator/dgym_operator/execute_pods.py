"""The pod of an attempt: made from the Episode as it is now, and recognized when it is there already."""

from collections.abc import Mapping
from typing import Any, NoReturn

from dgym.api import API_VERSION, DebugTask, Episode, labels
from dgym.kube import PODS, AlreadyExists, ApiError, Client, NotFound
from dgym.wire.http import Role, make_token, token_digest
from dgym.wire.messages import EndReason
from dgym_operator.execute_reading import Reader, Unmet
from dgym_operator.execute_writes import Writes
from dgym_operator.policies import Policies
from dgym_operator.reconcile.views import Pod
from dgym_operator.refusals import find_refusal
from dgym_operator.render.context import PodContext, PodSettings
from dgym_operator.render.engine import Renderer
from dgym_operator.render.errors import TemplateError
from dgym_operator.secrets_data import key_id

_INHERITED = (labels.SET, labels.INDEX, labels.SAMPLE, labels.TASK, labels.BENCHMARK)


class Gone(Exception):
    """The Episode or its namespace is being deleted: nothing is to be done for it any more."""


class PodMaker:
    """Makes pods."""

    def __init__(
        self,
        client: Client,
        writes: Writes,
        *,
        reader: Reader,
        policies: Policies,
        renderer: Renderer,
        pod_settings: PodSettings,
        default_template: str,
        key: bytes,
    ) -> None:
        self._client = client
        self._writes = writes
        self._reader = reader
        self._policies = policies
        self._renderer = renderer
        self._settings = pod_settings
        self._default_template = default_template
        self._key = key

    async def create(self, episode: Episode, *, name: str, attempt: int, deadline_seconds: int) -> Pod:
        """The attempt's pod, new or made before.

        Raises:
            Unmet: It cannot be made now, or ever; the reason says which.
            Gone: Nobody wants it any more.
        """
        namespace = episode.metadata.namespace or ""
        task = await self._reader.task(episode)
        # Whatever the agent will be sent is looked at now: an attempt without sources must not take a node.
        await self._reader.with_files(task)
        template = episode.spec.pod_template or task.spec.pod_template or self._default_template
        context = self._context(episode, task, name=name, attempt=attempt, deadline_seconds=deadline_seconds)
        manifest = self._manifest(episode, template, context)
        try:
            await self._policies.ensure(namespace)
            return await self._writes.create(PODS, manifest, decode=Pod, namespace=namespace)
        except AlreadyExists:
            return await self._recognize(episode, namespace, name)
        except ApiError as error:
            _refused(error)

    async def _recognize(self, episode: Episode, namespace: str, name: str) -> Pod:
        try:
            pod = await self._client.get(PODS, name, decode=Pod, namespace=namespace)
        except NotFound:
            raise Unmet(EndReason.INTERNAL_ERROR, f"an earlier pod {name} was deleted just now", passes=True) from None
        owner = pod.metadata.controller
        if owner is not None and owner.uid == episode.metadata.uid:
            return pod
        owned = f"owned by {owner.kind} {owner.name}" if owner is not None else "without an owner"
        if pod.metadata.deletion_timestamp is not None:
            message = f"an earlier pod {name}, {owned}, is still being deleted"
            raise Unmet(EndReason.POD_REJECTED, message, passes=True)
        raise Unmet(EndReason.POD_REJECTED, f"a pod {name}, {owned}, is there already; delete it")

    def _manifest(self, episode: Episode, template: str, context: PodContext) -> Mapping[str, Any]:
        try:
            manifest = self._renderer.render(template, context)
        except TemplateError as error:
            raise Unmet(EndReason.INVALID_SPEC, str(error)) from None
        manifest["metadata"]["ownerReferences"] = [owner_reference(episode)]
        manifest["metadata"].setdefault("labels", {})[labels.KEY] = key_id(self._key)
        return manifest

    def _context(
        self, episode: Episode, task: DebugTask, *, name: str, attempt: int, deadline_seconds: int
    ) -> PodContext:
        metadata, spec = episode.metadata, episode.spec
        if task.spec.image is None and not self._settings.sandbox_image:
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
            digests={
                role.value: token_digest(make_token(self._key, episode_uid=uid, attempt=attempt, role=role))
                for role in Role
            },
            # Not all of them: a label such as that of drivers would open other sandboxes to this one.
            labels={name: metadata.labels[name] for name in _INHERITED if name in metadata.labels},
            overrides=spec.pod_overrides,
            active_deadline_seconds=deadline_seconds,
            settings=self._settings,
        )


def owner_reference(episode: Episode) -> dict[str, Any]:
    """The Episode controls its pods: they go when it goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Episode",
        "name": episode.metadata.name,
        "uid": episode.metadata.uid,
        "controller": True,
    }


def _refused(error: ApiError) -> NoReturn:
    refusal = find_refusal(error)
    if refusal is None:
        raise Gone from error
    raise Unmet(*refusal) from error
