"""Requests to the admission policies of a release: the operator's account, and objects as the operator creates them."""

import copy
import json
import time
import urllib.error

from dgym.api import DebugTaskSpec
from dgym.wire.http import Role, make_token, token_digest
from dgym_operator.render import PodContext, Renderer
from dgym_operator.settings import Settings

DEADLINE = 90.0
EPISODE_UID = "5e0c7f0e-0000-4000-8000-000000000001"
POLICY_KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
EPISODE = {"apiVersion": "dgym.dev/v1alpha1", "kind": "Episode", "name": "fix", "uid": EPISODE_UID, "controller": True}


class Operator:
    """Sends requests with the operator's account. Nothing is stored."""

    def __init__(self, client, namespace):
        self.namespace = namespace
        self._client = client

    def refusal(self, path, manifest, method="POST", **options):
        """Return the message with which the API server refuses the object; empty if it accepts the object."""
        place = f"{path.format(self.namespace)}?dryRun=All&fieldValidation=Strict"
        try:
            self._client.request(method, place, manifest, **options)
        except urllib.error.HTTPError as error:
            return json.loads(error.read())["message"]
        return ""

    def pod(self, manifest):
        return self.refusal("/api/v1/namespaces/{}/pods", manifest)

    def secret(self, manifest):
        return self.refusal("/api/v1/namespaces/{}/secrets", manifest)

    def policy(self, manifest):
        return self.refusal("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", manifest)


def wait_for_policies(operator):
    """Wait until every policy is in force: policies take effect some time after they are stored, and independently."""
    bad = {"metadata": {"name": "no"}}
    probes = {
        "/api/v1/namespaces/{}/pods": {**bad, "spec": {"containers": [{"name": "no", "image": "no"}]}},
        "/api/v1/namespaces/{}/secrets": bad,
        "/api/v1/namespaces/{}/configmaps": bad,
        "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies": {**bad, "spec": {"podSelector": {}}},
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases": bad,
    }
    end = time.monotonic() + DEADLINE
    for path, probe in probes.items():
        while "ValidatingAdmissionPolicy" not in (refusal := operator.refusal(path, probe)):
            assert time.monotonic() < end, (path, refusal)
            time.sleep(0.1)


def sandbox_pod(namespace, template="restricted", *, delivered=True, **settings):
    """A pod as the operator creates it."""
    context = PodContext(
        name="fix-1",
        namespace=namespace,
        episode="fix",
        episode_uid=EPISODE_UID,
        attempt=1,
        task=DebugTaskSpec(),
        delivered=delivered,
        digests={
            role.value: token_digest(make_token(b"key", episode_uid=EPISODE_UID, attempt=1, role=role)) for role in Role
        },
        active_deadline_seconds=7200,
        settings=Settings(sandbox_image="localhost/sandbox:1", sidecar_image="localhost/sidecar:1", **settings),
    )
    pod = Renderer().render(template, context)
    pod["metadata"]["ownerReferences"] = [dict(EPISODE)]
    return pod


def changed(manifest, **places):
    """Return a copy with other values: ``spec__volumes__0`` is the first volume."""
    result = copy.deepcopy(manifest)
    for place, value in places.items():
        *path, last = (int(part) if part.isdigit() else part for part in place.split("__"))
        holder = result
        for part in path:
            holder = holder[part]
        if value is None:
            holder.pop(last)
        elif isinstance(holder, list) and last == len(holder):
            holder.append(value)
        else:
            holder[last] = value
    return result
