"""Tests of the parts of a sidecar that work without a pod: settings, access, uploads and logs."""

import json
import logging

import msgspec
import pytest

from dgym.errors import ManifestError
from dgym.logs import JsonFormatter, episode_fields
from dgym.sidecar import _preparation
from dgym.sidecar._access import Access
from dgym.sidecar.settings import read_settings
from dgym.wire.http import BindRequest, CallError, Role, make_token, token_digest
from dgym.wire.signing import content_digest, make_epochs, sign_request

KEY = b"key"
TOKENS = {role: make_token(KEY, episode_uid="uid", attempt=1, role=role) for role in Role}
DIGESTS = {role: token_digest(token) for role, token in TOKENS.items()}
REQUIRED = {f"DGYM_SIDECAR_{role.upper()}_SHA256": digest for role, digest in DIGESTS.items()}


def test_settings_are_read_from_the_environment_and_have_defaults():
    settings = read_settings({**REQUIRED, "DGYM_SIDECAR_PORT": "9000", "DGYM_SIDECAR_ATTEMPT": "3", "HOME": "/"})
    assert (settings.port, settings.attempt, settings.stop_timeout_seconds) == (9000, 3, 30.0)
    assert settings.digests == DIGESTS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"DGYM_SIDECAR_DRIVE_SHA256": "abc"}, "DGYM_SIDECAR_DRIVE_SHA256"),
        ({"DGYM_SIDECAR_PORT": "http"}, "DGYM_SIDECAR_PORT"),
    ],
)
def test_a_wrong_setting_is_named(change, expected):
    with pytest.raises(ManifestError, match=expected):
        read_settings({**REQUIRED, **change})


POOLED = {"DGYM_SIDECAR_BIND_SHA256": "d" * 64}


def bind_request(**change):
    body = {
        "episode": "team/fix-ledger", "episodeUid": "5e0c7f0e-0000-4000-8000-000000000001", "attempt": 3,
        "prepareSha256": "a" * 64, "driveSha256": "b" * 64, "operateSha256": "c" * 64,
    }  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(body | change), type=BindRequest)


def test_a_bound_sidecar_has_the_settings_of_one_that_knew_its_attempt():
    more = {"DGYM_SIDECAR_PORT": "9000", "DGYM_SIDECAR_STOP_TIMEOUT_SECONDS": "7"}
    pooled = read_settings({**POOLED, **more})
    assert pooled.bind_sha256 == "d" * 64
    known = {
        "DGYM_SIDECAR_PREPARE_SHA256": "a" * 64, "DGYM_SIDECAR_DRIVE_SHA256": "b" * 64,
        "DGYM_SIDECAR_OPERATE_SHA256": "c" * 64, "DGYM_SIDECAR_EPISODE": "team/fix-ledger",
        "DGYM_SIDECAR_EPISODE_UID": "5e0c7f0e-0000-4000-8000-000000000001", "DGYM_SIDECAR_ATTEMPT": "3",
    }  # fmt: skip
    assert pooled.bound(bind_request()) == read_settings({**known, **more})


@pytest.mark.parametrize(
    "name", [*REQUIRED, *(f"DGYM_SIDECAR_{name}" for name in ("EPISODE", "EPISODE_UID", "ATTEMPT"))]
)
def test_a_pooled_sidecar_has_nothing_of_an_attempt_in_its_environment(name):
    with pytest.raises(ManifestError, match=f"DGYM_SIDECAR_BIND_SHA256 .* remove it, or {name}$"):
        read_settings({**POOLED, name: REQUIRED.get(name, "1")})


@pytest.mark.parametrize("environment", [{}, {"DGYM_SIDECAR_EPISODE": "team/fix-ledger"}])
def test_a_sidecar_without_tokens_is_refused_with_both_remedies(environment):
    expected = (
        "DGYM_SIDECAR_BIND_SHA256 .* DGYM_SIDECAR_PREPARE_SHA256, DGYM_SIDECAR_DRIVE_SHA256, DGYM_SIDECAR_OPERATE"
    )
    with pytest.raises(ManifestError, match=expected):
        read_settings(environment)


@pytest.mark.parametrize("digest", ["", "d" * 63, "D" * 64, "d" * 64 + "\n"])
def test_a_wrong_digest_of_the_bind_token_is_not_repeated(digest):
    with pytest.raises(ManifestError, match=r"^DGYM_SIDECAR_BIND_SHA256 must be a SHA-256"):
        read_settings({"DGYM_SIDECAR_BIND_SHA256": digest})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"episode": "fix-ledger"}, "episode"),
        ({"episode": "team/fix-ledger\n"}, "episode"),
        ({"episode": "a" * 64 + "/b"}, "episode"),
        ({"episodeUid": ""}, "episodeUid"),
        ({"episodeUid": "uid\n"}, "episodeUid"),
        ({"episodeUid": "u" * 65}, "episodeUid"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": "1"}, "attempt"),
        ({"attempt": 2**31}, "attempt"),
        ({"prepareSha256": "a" * 63}, "prepareSha256"),
        ({"driveSha256": "B" * 64}, "driveSha256"),
        ({"operateSha256": "c" * 64 + "\n"}, "operateSha256"),
        ({"operateSha256": None}, "operateSha256"),
        ({"driveSha256": "a" * 64}, "must differ"),
        ({"operateSha256": "b" * 64}, "must differ"),
    ],
)
def test_an_invalid_bind_request_is_refused_with_its_field(change, expected):
    with pytest.raises(msgspec.ValidationError, match=expected):
        bind_request(**change)


def given(role, epoch, key=KEY):
    return getattr(make_epochs(key, episode_uid="uid", attempt=1, epoch=epoch), role)


def call(access, role, allowed=None, epoch=None, scheme="Dgym"):
    text = given(role, epoch) if isinstance(epoch, int) else epoch or ""
    signed = sign_request(TOKENS.get(role, "another"), "POST", "/v1/x", epoch=text, content=content_digest(b""))
    headers = {"Authorization": signed.replace("Dgym", scheme)} | ({} if epoch is None else {"Dgym-Epoch": text})
    return access.authorize(access.identify("POST", "/v1/x", headers).role, headers, [allowed or role])


def code(*arguments, **options):
    with pytest.raises(CallError) as caught:
        call(*arguments, **options)
    return caught.value.code


def test_a_role_may_call_what_is_its_own():
    access = Access(DIGESTS)
    for role in Role:
        assert call(access, role).role is role
    assert code(access, Role.DRIVE, Role.PREPARE) == "forbidden"
    assert code(access, "other", Role.PREPARE) == "unauthenticated"
    assert code(access, Role.DRIVE, scheme="Basic") == "unauthenticated"
    with pytest.raises(CallError):
        access.identify("POST", "/v1/x", {})


def test_a_higher_epoch_supersedes_a_lower_one_in_every_role():
    access = Access(DIGESTS)
    old = call(access, Role.DRIVE, epoch=1)
    call(access, Role.DRIVE, epoch=1)
    call(access, Role.PREPARE, epoch=2)
    assert code(access, Role.DRIVE, epoch=1) == "superseded"
    with pytest.raises(CallError):
        access.check_current(old)
    call(access, Role.DRIVE, epoch=2)
    # The operator's own calls do not have an epoch.
    call(access, Role.OPERATE, epoch="0")


def test_a_driver_without_an_assignment_is_superseded_by_an_assigned_driver():
    access = Access(DIGESTS)
    call(access, Role.PREPARE, epoch=5)
    call(access, Role.DRIVE)
    call(access, Role.DRIVE, epoch=5)
    assert code(access, Role.DRIVE) == "superseded"


@pytest.mark.parametrize(
    "epoch",
    [
        given(Role.PREPARE, 2**53),
        given(Role.DRIVE, 2**53, b"another key"),
        given(Role.DRIVE, 3).replace("3.", "4.", 1),
        f"{2**53}.{'0' * 64}",
    ],
    ids=["another role", "another key", "another epoch", "invented proof"],
)
def test_an_epoch_without_a_valid_proof_is_forbidden(epoch):
    access = Access(DIGESTS)
    call(access, Role.DRIVE, epoch=3)
    assert code(access, Role.DRIVE, epoch=epoch) == "forbidden"
    call(access, Role.DRIVE, epoch=3)
    call(access, Role.PREPARE, epoch=3)


@pytest.mark.parametrize("epoch", ["", "1", "-1", "1.5", "٣." + "0" * 64, "9" * 30 + "." + "0" * 64])
def test_an_epoch_is_a_whole_number_with_a_proof(epoch):
    assert code(Access(DIGESTS), Role.DRIVE, epoch=epoch) == "invalid_argument"


async def test_an_upload_is_in_place_only_when_it_is_whole(tmp_path):
    upload = _preparation.Upload(tmp_path / "workspace.tar", limit=10, what="workspace")

    async def chunks(*parts, error=None):
        for part in parts:
            yield part
        if error is not None:
            raise error

    assert (await upload.receive(chunks(b"12345", b"67890"))).bytes == 10
    with pytest.raises(CallError):
        await upload.receive(chunks(b"12345", b"67890", b"1"))
    with pytest.raises(ConnectionError):
        await upload.receive(chunks(b"12", error=ConnectionError()))
    assert [path.name for path in tmp_path.iterdir()] == ["workspace.tar"]
    assert upload.path.read_bytes() == b"1234567890"


def test_a_log_line_is_valid_json_for_any_text():
    formatter = JsonFormatter(lambda: episode_fields("default/calc", attempt=2))
    record = logging.LogRecord("dgym", logging.INFO, "f", 1, "said %s\n", ("\ud800",), None)
    record.fields = {"code": "ok"}
    line = formatter.format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["namespace"], entry["episode"], entry["attempt"]) == ("default", "calc", 2)
    assert (entry["code"], entry["level"]) == ("ok", "INFO")
