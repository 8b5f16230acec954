"""Tests of the responses of the API server to ``POST pods``. The texts are those of Kubernetes 1.35."""

import json

import pytest

from dgym.api import DebugTask, DebugTaskSpec, Episode, EpisodeSpec, ObjectMeta, PodOverrides, Resources
from dgym.kube import ConnectionLost, UnreadableAnswer
from dgym.kube._resources import error_from_answer
from dgym_operator.actions._pods import find_refusal
from dgym_operator.actions._refusals import explained
from dgym_operator.chart_values import DefaultResources

FORBIDDEN = 'pods "fix-1" is forbidden: '
LIMIT = "must be less than or equal to cpu limit of 50m"


def answer(status, message, reason="", causes=(), headers=None):
    details = {"name": "fix-1", "kind": "pods", "causes": list(causes)}
    body = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "details": details}
    return error_from_answer(status, json.dumps({**body, "code": status}).encode(), headers or {})


def invalid(*causes):
    texts = ", ".join(f"{each['field']}: {each['message']}" for each in causes)
    return answer(422, f'Pod "fix-1" is invalid: {texts}', "Invalid", causes)


ABOVE_DEFAULT = {"field": "spec.containers[0].resources.requests", "message": f'Invalid value: "100m": {LIMIT}'}
NO_IMAGE = {"field": "spec.containers[0].image", "message": "Required value"}

PASSES = {
    "conflict": (
        answer(
            409,
            'Operation cannot be fulfilled on resourcequotas "team": the object has been modified; please apply your '
            "changes to the latest version and try again",
            "Conflict",
        ),
        "InternalError",
    ),
    "too many": (answer(429, "too many requests, please try again later", "TooManyRequests"), "InternalError"),
    "webhook": (
        answer(
            500,
            'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook: Post '
            '"https://hook.example.svc:443/?timeout=10s": context deadline exceeded',
            "InternalError",
        ),
        "InternalError",
    ),
    "quota controller": (
        answer(500, "Internal error occurred: resource quota evaluation timed out", "InternalError"),
        "InternalError",
    ),
    "etcd": (answer(500, "etcdserver: request timed out"), "InternalError"),
    "starting": (answer(503, "apiserver not ready", "ServiceUnavailable"), "InternalError"),
    "timeout": (
        answer(
            504, "Timeout: request did not complete within requested timeout - context deadline exceeded", "Timeout"
        ),
        "InternalError",
    ),
    "proxy": (error_from_answer(502, b"<html>bad gateway</html>", {}), "InternalError"),
    "no answer": (ConnectionLost("no answer within 30 s"), "InternalError"),
    "unreadable": (UnreadableAnswer("not a pod", status=201), "InternalError"),
    "credentials": (answer(401, "Unauthorized", "Unauthorized"), "InternalError"),
    "new definitions": (
        answer(
            403,
            FORBIDDEN + "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion "
            'dgym.dev/v1alpha1 Kind Episode: no matches for kind "Episode" in version "dgym.dev/v1alpha1"',
            "Forbidden",
        ),
        "PodRejected",
    ),
    "right": (
        answer(
            403,
            FORBIDDEN + 'User "system:serviceaccount:dgym-system:dgym-operator" cannot create resource "pods" in API '
            'group "" in the namespace "team"',
            "Forbidden",
        ),
        "InternalError",
    ),
    "quota": (
        answer(
            403,
            FORBIDDEN + "exceeded quota: team, requested: pods=1, used: pods=10, limited: pods=10",
            "Forbidden",
        ),
        "QuotaExceeded",
    ),
    "quota without limits": (
        answer(403, FORBIDDEN + "failed quota: team: must specify limits.cpu for: sandbox", "Forbidden"),
        "QuotaExceeded",
    ),
    "new quota": (
        answer(403, FORBIDDEN + "status unknown for quota: team, resources: pods", "Forbidden"),
        "PodRejected",
    ),
    "new namespace": (
        answer(
            403,
            FORBIDDEN + 'error looking up service account team/default: serviceaccount "default" not found',
            "Forbidden",
        ),
        "PodRejected",
    ),
    "limit range": (
        answer(403, FORBIDDEN + "maximum cpu usage per Container is 50m, but limit is 100m", "Forbidden"),
        "PodRejected",
    ),
    "new server": (answer(403, FORBIDDEN + "not yet ready to handle request", "Forbidden"), "PodRejected"),
    "limit range's default": (invalid(ABOVE_DEFAULT), "PodRejected"),
}
FINAL = {
    "pod security": answer(
        403,
        FORBIDDEN + 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
        "Forbidden",
    ),
    "priority class": answer(403, FORBIDDEN + "no PriorityClass with name nope was found", "Forbidden"),
    "runtime class": answer(403, FORBIDDEN + 'pod rejected: RuntimeClass "nope" not found', "Forbidden"),
    "webhook": answer(403, 'admission webhook "pods.example.com" denied the request: no', "Forbidden"),
    "schema": invalid(NO_IMAGE),
    "schema and a default": invalid(ABOVE_DEFAULT, NO_IMAGE),
    "request": answer(400, 'Pod in version "v1" cannot be handled as a Pod: unknown field', "BadRequest"),
    "size": answer(413, "Request entity too large: limit is 3145728", "RequestEntityTooLarge"),
}


@pytest.mark.parametrize("name", PASSES)
def test_temporary_refusals_are_retried(name):
    error, end = PASSES[name]
    refusal = find_refusal(error)
    assert (refusal.is_temporary, refusal.reason) == (True, end)
    assert error.message in refusal.message


@pytest.mark.parametrize("name", FINAL)
def test_permanent_refusals_are_final(name):
    refusal = find_refusal(FINAL[name])
    assert (refusal.is_temporary, refusal.reason, refusal.message) == (False, "PodRejected", FINAL[name].message)


def test_a_terminating_namespace_is_not_a_refusal():
    going = {"reason": "NamespaceTerminating", "message": "namespace team is being terminated", "field": ""}
    text = FORBIDDEN + "unable to create new content in namespace team because it is being terminated"
    assert find_refusal(answer(403, text, "Forbidden", [going])) is None
    assert find_refusal(answer(404, 'namespaces "team" not found', "NotFound")) is None


def test_retry_after_is_part_of_the_refusal():
    error = answer(429, "too many requests", "TooManyRequests", headers={"Retry-After": "120"})
    assert find_refusal(error).retry_after == 120


def test_a_default_that_is_too_low_is_named_as_such():
    assert "LimitRange" in find_refusal(invalid(ABOVE_DEFAULT)).message


FIX = "set resources of DebugTask t or podOverrides.resources of the Episode"
ALONE = (
    "exceeded quota: team, requested: limits.memory=4352Mi,pods=1, used: limits.memory=0,pods=1, limited: "
    "limits.memory=4Gi,pods=1"
)
TWICE = "maximum cpu usage per Container is 1, but limit is 2, maximum memory usage per Pod is 1Gi, but limit is 4Gi"


@pytest.mark.parametrize(
    ("message", "given", "expected"),
    [
        (f"forbidden: [{TWICE}]", {}, "requests.cpu 100m, requests.memory 256Mi, limits.memory 2Gi"),
        ("maximum memory usage per Container is 1Gi, but limit is 2Gi", {"memory": "2Gi"}, "requests.memory 256Mi"),
        ("memory max limit to request ratio per Container is 2, but provided ratio is 8.0", {}, "limits.memory 2Gi"),
        ("maximum cpu usage per Container is 1, but no limit is specified", {}, "requests.cpu 100m"),
        (
            ALONE,
            {},
            "the pod alone is more than the quota; dgym's default for the sandbox is limits.memory 2Gi; ",
        ),
    ],
)
def test_room_that_a_pod_can_never_have_is_explained(message, given, expected):
    text = explained(message, *_request(given), DefaultResources())
    assert text.startswith(f"{message}; ")
    assert expected in text
    assert FIX in text


@pytest.mark.parametrize(
    "message",
    [
        "exceeded quota: team, requested: limits.memory=4Gi, used: limits.memory=4Gi, limited: limits.memory=8Gi",
        'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    ],
)
def test_other_messages_are_not_changed(message):
    assert explained(message, *_request({}), DefaultResources()) == message


def test_a_limit_that_a_quota_requires_is_named():
    text = explained("failed quota: team: must specify limits.cpu for: sandbox", *_request({}), DefaultResources())
    assert FIX in text
    assert "dgym's default" not in text


def _request(limits):
    overrides = PodOverrides(resources=Resources(limits=limits))
    episode = Episode(metadata=ObjectMeta(name="e"), spec=EpisodeSpec(pod_overrides=overrides))
    return episode, DebugTask(metadata=ObjectMeta(name="t"), spec=DebugTaskSpec())
