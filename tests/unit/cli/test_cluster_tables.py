import io
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from rich.console import Console

from dgym.cli.cluster.connection import (
    ConditionView,
    EpisodeView,
    EpisodeViewStatus,
    Meta,
    SetView,
    SetViewStatus,
    age,
    explained,
    table_of,
)
from dgym.cli.output import widen
from dgym.errors import ManifestError
from dgym.kube import ClusterAccess, Credentials, NotFound
from dgym.kube._resources import error_from_answer

FINISHED = ConditionView(type="Finished", status="True", reason="Completed")


def episode(name, reason, *, finished=False, message=""):
    conditions = (ConditionView(type="SandboxReady", status="False", reason=reason, message=message),)
    status = EpisodeViewStatus(reason=reason, conditions=(*conditions, FINISHED) if finished else conditions)
    return EpisodeView(metadata=Meta(name=name), status=status)


def drawn(episodes, sets=(), width=40):
    screen = Console(file=io.StringIO(), width=width)
    table = table_of([*sets, *episodes])
    widen(screen, table)
    screen.print(table)
    return screen.file.getvalue().splitlines()


def test_names_and_numbers_are_never_cut():
    status = SetViewStatus(total=10_000, active=123, resolved=9_000, pass_at_1="0.9000", conditions=(FINISHED,))
    name = "a-rather-long-name-of-a-set-of-episodes"
    (_, row, *_) = drawn([], [SetView(metadata=Meta(name=name), status=status)])
    assert row.split()[:3] == [f"episodeset/{name}", "Completed", "9000/10000"]
    of_arms = msgspec.structs.replace(status, resolved_by_arm="pdb 5000/5000, plain 4000/4900")
    (_, row) = drawn([], [SetView(metadata=Meta(name=name), status=of_arms)], width=300)
    counts = "9000/10000 finished: 9000 resolved, 0 unresolved, 0 failed · 123 active · 100 % resolved; pass@1 0.9000"
    counts += "; by arm: pdb 5000/5000, plain 4000/4900"
    assert row.split() == [f"episodeset/{name}", "Completed", "9000/10000", *counts.split()]


def test_the_table_shows_messages_of_waiting_and_failed_episodes_only():
    lines = drawn(
        [
            episode("one", "Unschedulable", message="no node fits"),
            episode("two", "Resolved", finished=True, message="5 of 5"),
            episode("three", "SetupFailed", finished=True, message="pip failed"),
        ],
        width=100,
    )
    assert [line.split()[:2] for line in lines[1:]] == [
        ["one", "Unschedulable"],
        ["two", "Resolved"],
        ["three", "SetupFailed"],
    ]
    assert lines[1].rstrip().endswith("no node fits")
    assert lines[3].rstrip().endswith("pip failed")
    assert "5 of 5" not in lines[2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (3 * 3600 + 1200, "3h20m"), (11 * 3600, "11h"), (49 * 3600, "2d")],
)
def test_ages(seconds, text):
    now = datetime(2026, 1, 31, tzinfo=UTC)
    assert age(now - timedelta(seconds=seconds), now) == text


ACCESS = ClusterAccess(server="https://one", credentials=Credentials(), context="here")


def refused(status, body, path="/apis/dgym.dev/v1alpha1/namespaces/a/episodes/b", method="GET"):
    error = error_from_answer(status, body, {})
    error.method, error.path = method, path
    return error, explained(error, ACCESS)


def test_a_cluster_without_dgym():
    answered, error = refused(404, b"404 page not found\n")
    assert isinstance(answered, NotFound)
    assert "the cluster of context 'here' has no resources of dgym.dev; install dgym: helm install dgym" in str(error)


def test_a_refused_manifest_is_a_fault_of_the_manifest():
    _, error = refused(422, b'{"message": "spec is wrong", "reason": "Invalid"}', method="PATCH")
    assert isinstance(error, ManifestError)
    assert str(error) == "spec is wrong"


def test_an_answer_that_is_not_a_status():
    assert str(refused(502, b"")[1]) == "HTTP status 502 to GET /apis/dgym.dev/v1alpha1/namespaces/a/episodes/b"
    assert str(refused(502, b"<html>bad gateway")[1]) == "<html>bad gateway"


def test_forbidden_to_change():
    body = b'{"message": "episodes.dgym.dev \\"b\\" is forbidden: User \\"me\\" cannot patch resource"}'
    assert "ClusterRole 'edit' in namespace a" in str(refused(403, body, method="PATCH")[1])
