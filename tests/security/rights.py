"""Comparison of the rights that the chart grants with the requests of its accounts in the API server's audit log."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ACCOUNT = "system:serviceaccount:"
COMPONENTS = {"operator": "operator", "agents": "agent", "cleanup": "cleanup", "test": "test"}
"""The components of a release, by the suffix of their accounts' names."""
ANYWHERE = ("test",)
"""Components whose single role may be in the release's namespace or in a served namespace."""
BINDINGS = ("rolebindings", "clusterrolebindings")


class Right(NamedTuple):
    """A verb on a resource, for a single name or all names, in the release's own or in served namespaces."""

    component: str
    own: bool
    verb: str
    resource: str
    name: str = ""

    def __str__(self) -> str:
        """The form in messages and in the list of exceptions."""
        where = "own" if self.own else "served"
        return " ".join(filter(None, (f"{self.component} ({where}):", self.verb, self.resource, self.name)))


class Request(NamedTuple):
    """A request of a release's account. ``sufficed`` is true if its rights allowed it."""

    account: str
    right: Right
    sufficed: bool
    message: str = ""

    def __str__(self) -> str:
        """The form in messages of failures."""
        return f"{self.account}: {self.right}: {self.message}"


def granted(objects: Iterable[dict[str, Any]], namespace: str) -> set[Right]:
    """Every right in a rendered chart's roles, except roles for users."""
    found: set[Right] = set()
    for role in objects:
        if role["kind"] in ("Role", "ClusterRole"):
            component = role["metadata"]["labels"]["app.kubernetes.io/component"]
            own = component not in ANYWHERE and role["metadata"].get("namespace") == namespace
            found.update(right for rule in role["rules"] for right in _rights(component, own, rule))
    return {right for right in found if right.component != "users"}


def _rights(component: str, own: bool, rule: dict[str, Any]) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or ("",):
                    yield Right(component, own, verb, f"{group}/{resource}", name)


def requests(lines: Iterable[str]) -> list[Request]:
    """The requests of releases' accounts in the lines of an audit log.

    Denied requests are ignored if the account's bindings or the namespace were deleted. Requests without authentication
    are ignored too. They occur while an API server starts.
    """
    found, revoked = [], _Revoked()
    for line in lines:
        entry = json.loads(line)
        about = entry.get("objectRef")
        if about is None or not _user(entry):
            continue
        revoked.observe(entry, about)
        found += [asked for asked in _requests(entry, about) if asked.sufficed or not revoked.concerns(entry, about)]
    return found


@dataclass
class _Revoked:
    """Bindings and namespaces that have been deleted so far."""

    bindings: set[tuple[str, str]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)

    def observe(self, entry: dict[str, Any], about: dict[str, Any]) -> None:
        if (entry.get("responseStatus") or {}).get("code", 0) >= 400:
            return
        binding = (about.get("namespace", ""), about.get("name", ""))
        deleted = entry["verb"] in ("delete", "deletecollection")
        if about.get("resource") == "namespaces" and deleted:
            self.namespaces.add(about.get("name", ""))
        if about.get("resource") in BINDINGS:
            (self.bindings.add if deleted else self.bindings.discard)(binding)

    def concerns(self, entry: dict[str, Any], about: dict[str, Any]) -> bool:
        namespace, name = _account(entry)
        if self.namespaces & {namespace, about.get("namespace", "")}:
            return True
        component = name.rpartition("-")[2]
        return any(
            component in binding and (place == namespace or namespace in binding) for place, binding in self.bindings
        )


def _user(entry: dict[str, Any]) -> str:
    user: str = (entry.get("user") or {}).get("username", "")
    return user


def _account(entry: dict[str, Any]) -> tuple[str, str]:
    namespace, _, name = _user(entry).removeprefix(ACCOUNT).partition(":")
    return namespace, name


def _requests(entry: dict[str, Any], about: dict[str, Any]) -> Iterator[Request]:
    namespace, name = _account(entry)
    component = COMPONENTS.get(name.rpartition("-")[2])
    if not _user(entry).startswith(ACCOUNT) or "dgym" not in name or component is None:
        return
    kind = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
    own = component not in ANYWHERE and about.get("namespace") == namespace
    # In object names, replace the release's name by dgym, the release name of the rendered chart.
    about_name = about.get("name", "").replace(name.rpartition("-")[0], "dgym", 1)
    right = Right(component, own, entry["verb"], f"{about.get('apiGroup', '')}/{kind}", about_name)
    status = entry.get("responseStatus") or {}
    account = f"{namespace}:{name}"
    yield Request(account, right, not _is_denied(entry), status.get("message", ""))
    if (right.verb, status.get("code")) == ("patch", 201):
        # An apply that creates an object also needs the right to create. It is logged as a patch.
        yield Request(account, right._replace(verb="create"), sufficed=True)


def _is_denied(entry: dict[str, Any]) -> bool:
    """True if rights were missing. Status 403 does not suffice: admission and terminating namespaces also return it."""
    if (entry.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid":
        return True
    status = entry.get("responseStatus") or {}
    # If a patch creates an object, the creation is authorized after the patch.
    return status.get("code") == 403 and "cannot create resource" in status.get("message", "")


def denied(asked: Sequence[Request]) -> list[str]:
    """The requests that were denied because of missing rights.

    A starting API server denies all requests until it has read the roles. So a denied request is ignored if the same
    request of the account was allowed before and after.
    """
    before = _allowed(asked)
    after = _allowed(reversed(asked))
    return sorted(
        {str(each) for at, each in enumerate(asked) if not each.sufficed and not (before[at] and after[-1 - at])}
    )


def _allowed(asked: Iterable[Request]) -> list[bool]:
    """For each request, true if a similar earlier request was allowed."""
    seen: set[tuple[str, Right]] = set()
    found = []
    for request in asked:
        like = (request.account, request.right._replace(name=""))
        found.append(like in seen)
        if request.sufficed:
            seen.add(like)
    return found


def unused(rights: Iterable[Right], asked: Iterable[Request]) -> set[Right]:
    """The rights that no request used. A right without a name applies to every name."""
    seen = {request.right for request in asked if request.sufficed}
    unnamed = {right._replace(name="") for right in seen}
    return {right for right in rights if right not in (seen if right.name else unnamed)}
