"""Tests of the template hash, the manifest and the bind token of pooled pods."""

from datetime import UTC, datetime, timedelta

import pytest

from dgym.api import DebugTaskSpec, PodOverrides, Resources
from dgym.wire.http import Role, token_digest
from dgym_operator.actions._pods import claim_patch
from dgym_operator.objects import Pod, PodMeta
from dgym_operator.pod_identity import bind_token, pool_identity, template_hash, unbound
from dgym_operator.render import PodContext, Renderer, token_digests
from dgym_operator.settings import Settings

KEY = b"k" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def manifest(episode="fix", *, template="restricted", task=None, **context):
    given = {
        "name": f"{episode}-1",
        "namespace": "team",
        "episode": episode,
        "episode_uid": f"uid-{episode}",
        "attempt": 1,
        "task": task or DebugTaskSpec(image="python:3.12"),
        "delivered": True,
        "digests": token_digests(KEY, episode_uid=f"uid-{episode}", attempt=1),
        "active_deadline_seconds": 600,
        "settings": Settings(sandbox_image="sandbox", sidecar_image="sidecar"),
        **context,
    }
    made = Renderer().render(template, PodContext(**given))
    made["metadata"].setdefault("annotations", {})
    return made


@pytest.mark.parametrize("template", ["restricted", "baseline"])
def test_pods_of_episodes_that_differ_in_nothing_else_are_the_same(template):
    one = manifest("one", template=template)
    other = manifest("other", template=template, attempt=3, active_deadline_seconds=9, labels={"dgym.dev/set": "all"})
    assert one != other
    assert template_hash(one) == template_hash(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"task": DebugTaskSpec(image="python:3.13")},
        {"task": DebugTaskSpec(image="python:3.12", working_directory="/elsewhere")},
        {"task": DebugTaskSpec(image="python:3.12", interpreter="/usr/bin/python3")},
        {"task": DebugTaskSpec(image="python:3.12", resources=Resources(limits={"memory": "1Gi"}))},
        {"delivered": False},
        {"template": "baseline"},
        {"overrides": PodOverrides(node_selector={"disk": "fast"})},
        {"overrides": PodOverrides(runtime_class_name="gvisor")},
        {"overrides": PodOverrides(annotations={"team": "red"})},
        {"labels": {"kueue.x-k8s.io/queue-name": "research"}},
        {"settings": Settings(sandbox_image="sandbox", sidecar_image="sidecar:2")},
        {"settings": Settings(sandbox_image="sandbox", sidecar_image="sidecar", log_level="DEBUG")},
    ],
    ids=lambda changed: " ".join(changed),
)
def test_every_other_difference_changes_the_template_hash(changed):
    assert template_hash(manifest(**changed)) != template_hash(manifest())


def test_a_pooled_pod_does_not_contain_an_episode_or_its_tokens():
    digest = token_digest(bind_token(KEY, pool_identity("team", "warm-1")))
    given = manifest("one")
    pooled = unbound(given, pool="warm", digest=digest)
    assert template_hash(pooled) != template_hash(given)
    text = str(pooled["spec"])
    assert digest in text
    secret = token_digests(KEY, episode_uid="uid-one", attempt=1).values()
    assert not [each for each in ("uid-one", "team/one", *secret) if each in text]
    labels = pooled["metadata"]["labels"]
    assert labels["dgym.dev/sandbox-pool"] == "warm"
    assert not {"dgym.dev/episode", "dgym.dev/attempt"} & labels.keys()
    assert given["metadata"]["labels"]["dgym.dev/episode"] == "one"


def test_the_bind_token_is_specific_to_a_pod_and_is_not_a_token_of_an_attempt():
    token = bind_token(KEY, pool_identity("team", "warm-1"))
    assert (
        token != bind_token(KEY, pool_identity("team", "warm-2")) != bind_token(KEY, pool_identity("other", "warm-2"))
    )
    assert token_digest(token) not in token_digests(KEY, episode_uid="warm-1", attempt=1).values()
    assert set(token_digests(KEY, episode_uid="warm-1", attempt=1)) == {role.value for role in Role}


def test_a_claim_is_of_this_version_of_the_pod_and_counts_its_wait():
    metadata = PodMeta(name="warm-1", uid="u", resource_version="7", creation_timestamp=NOW - timedelta(seconds=100))
    wanted = manifest("one")
    wanted["metadata"] |= {"ownerReferences": ["owner"], "annotations": {"dgym.dev/proof": "proof"}}
    patch = claim_patch(Pod(metadata=metadata), wanted, now=NOW, deadline_seconds=600)
    assert patch["spec"] == {"activeDeadlineSeconds": 700}
    assert (patch["metadata"]["uid"], patch["metadata"]["resourceVersion"]) == ("u", "7")
    assert patch["metadata"]["ownerReferences"] == ["owner"]
    assert patch["metadata"]["annotations"]["dgym.dev/proof"] == "proof"
    claimed = datetime.fromisoformat(patch["metadata"]["annotations"]["dgym.dev/claimed"])
    assert claimed == NOW
