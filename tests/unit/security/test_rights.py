"""Tests of the comparison of rights with an audit log."""

import json
from typing import Any

from tests.security.rights import Right, denied, granted, requests, unused

OPERATOR = "system:serviceaccount:home:dgym-operator"


def line(verb: str, resource: str, namespace: str = "served", *, user: str = OPERATOR, **more: Any) -> str:
    about = {"resource": resource, "apiGroup": "", "namespace": namespace, "name": more.pop("name", "")}
    entry = {"verb": verb, "stage": "ResponseComplete", "user": {"username": user}, "objectRef": about}
    return json.dumps({**entry, "responseStatus": {"code": more.pop("code", 200), "message": ""}, **more})


def forbidden(verb: str, resource: str, namespace: str = "served") -> str:
    return line(verb, resource, namespace, code=403, annotations={"authorization.k8s.io/decision": "forbid"})


def role(kind: str, component: str, namespace: str | None, *rules: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "r", "labels": {"app.kubernetes.io/component": component}}
    return {"kind": kind, "metadata": metadata | ({"namespace": namespace} if namespace else {}), "rules": rules}


def rule(resource: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": [resource], "verbs": list(verbs), **more}


def test_rights_are_one_for_each_verb_resource_and_name() -> None:
    objects = [
        role("ClusterRole", "operator", None, rule("pods", "get", "list")),
        role("Role", "operator", "home", rule("secrets", "get", resourceNames=["a", "b"])),
        role("ClusterRole", "users", None, rule("pods", "get")),
        {"kind": "Service"},
    ]
    assert {str(right) for right in granted(objects, "home")} == {
        "operator (served): get /pods",
        "operator (served): list /pods",
        "operator (own): get /secrets a",
        "operator (own): get /secrets b",
    }


def test_unused_rights_are_found() -> None:
    rights = {
        Right("operator", own=False, verb="get", resource="/pods"),
        Right("operator", own=False, verb="list", resource="/pods"),
        Right("operator", own=True, verb="get", resource="/pods"),
        Right("operator", own=True, verb="get", resource="/secrets", name="a"),
        Right("operator", own=True, verb="get", resource="/secrets", name="b"),
    }
    log = [line("get", "pods", name="p"), line("get", "secrets", "home", name="a")]
    assert {str(right) for right in unused(rights, requests(log))} == {
        "operator (served): list /pods",
        "operator (own): get /pods",
        "operator (own): get /secrets b",
    }


def test_an_apply_that_creates_uses_the_right_to_create() -> None:
    patch = Right("operator", own=False, verb="patch", resource="/networkpolicies", name="n")
    create = Right("operator", own=False, verb="create", resource="/networkpolicies")
    assert unused({patch, create}, requests([line("patch", "networkpolicies", name="n", code=200)])) == {create}
    assert unused({patch, create}, requests([line("patch", "networkpolicies", name="n", code=201)])) == set()


def test_a_denied_request_is_found_and_needs_no_right() -> None:
    asked = requests([forbidden("delete", "pods")])
    assert denied(asked) == ["home:dgym-operator: operator (served): delete /pods: "]
    right = Right("operator", own=False, verb="delete", resource="/pods")
    assert unused({right}, asked) == {right}


def test_a_request_allowed_before_and_after_does_not_count_as_denied() -> None:
    allowed, refused = line("get", "pods", name="p"), forbidden("get", "pods")
    assert denied(requests([allowed, refused, refused, allowed])) == []
    for log in ([allowed, refused], [refused, allowed], [allowed, forbidden("list", "pods"), allowed]):
        assert len(denied(requests(log))) == 1


def test_an_apply_that_may_not_create_is_denied() -> None:
    status = {"code": 403, "message": 'User "u" cannot create resource "leases"'}
    assert denied(requests([line("patch", "leases", responseStatus=status)]))


def test_a_refusal_by_admission_does_not_count_as_denied() -> None:
    status = {"code": 403, "message": "ValidatingAdmissionPolicy 'p' denied request"}
    assert denied(requests([line("create", "pods", responseStatus=status)])) == []


def test_requests_after_the_rights_have_gone_are_passed_over() -> None:
    gone = [
        line("delete", "clusterrolebindings", "", user="admin", name="home:dgym-operator"),
        line("delete", "rolebindings", "home", user="admin", name="dgym-operator"),
        line("delete", "rolebindings", "served", user="admin", name="dgym-operator-home"),
        line("delete", "namespaces", "", user="admin", name="served"),
    ]
    for each in gone:
        assert denied(requests([each, forbidden("get", "pods")])) == []
        assert denied(requests([forbidden("get", "pods"), each])), "it was denied before"
    others = line("delete", "clusterrolebindings", "", user="admin", name="other:dgym-operator")
    assert denied(requests([others, forbidden("get", "pods")]))
    refused = line("delete", "namespaces", "", user="admin", name="served", code=404)
    assert denied(requests([refused, forbidden("get", "pods")]))
    again = line("create", "rolebindings", "home", user="admin", name="dgym-operator")
    assert denied(requests([gone[1], again, forbidden("get", "pods")]))


def test_accounts_of_others_are_passed_over() -> None:
    others = ("system:serviceaccount:kube-system:namespace-controller", "admin", "system:serviceaccount:a:default")
    assert requests([line("get", "pods", user=user) for user in others]) == []


def test_requests_that_were_not_authenticated_are_passed_over() -> None:
    nobody = [line("get", "pods", code=401) for _ in range(2)]
    unnamed = [json.dumps({**json.loads(nobody[0]), "user": user}) for user in ({}, None)]
    assert requests([*unnamed, json.dumps({k: v for k, v in json.loads(nobody[1]).items() if k != "user"})]) == []


def test_releases_of_any_name_are_compared() -> None:
    right = Right("cleanup", own=True, verb="delete", resource="/deployments", name="dgym-operator")
    user = "system:serviceaccount:home:nightly-dgym-cleanup"
    asked = requests([line("delete", "deployments", "home", user=user, name="nightly-dgym-operator")])
    assert unused({right}, asked) == set()


def test_the_role_of_the_test_may_be_in_any_namespace() -> None:
    (right,) = granted([role("Role", "test", "home", rule("episodes", "get"))], "home")
    user = "system:serviceaccount:home:dgym-test"
    assert unused({right}, requests([line("get", "episodes", "served", user=user, name="e")])) == set()
