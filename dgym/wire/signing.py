"""Signatures of requests, answers and outcomes between a sidecar and its callers. Pure.

The containers of a pod share the network, so a program in the sandbox could answer on the port of a terminated sidecar.
Such a program does not have a key: the key of a role is the SHA-256 of its token, in the sidecar's environment.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping

import msgspec

from dgym.wire.http import Epochs, Role, make_token, token_digest
from dgym.wire.outcome import AttemptOutcome, Result

SCHEME = "Dgym"
"""The scheme of the header ``Authorization``: ``Dgym TIME.NONCE.CONTENT.PROOF.SIGNATURE``."""
SIGNATURE_HEADER = "Dgym-Signature"
"""The header with the signature of an answer."""
WINDOW_SECONDS = 300
"""Largest difference between the clocks of a caller and a sidecar. Requests with a larger difference are refused."""
_EPOCH = re.compile(r"([0-9]{1,16})\.([0-9a-f]{64})")
_OUTCOME_SIGNATURE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})")
_FORM = re.compile(r"Dgym (\d{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})\.([0-9a-f]{2,512})\.([0-9a-f]{64})")


class SignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request with a valid signature. Its body must have the SHA-256 ``content``."""

    role: Role
    key: str
    time: int
    nonce: str
    content: str
    authorization: str


def content_digest(data: bytes | bytearray) -> str:
    """Return the SHA-256 of a body, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def signing_time() -> int:
    """Return the current time in seconds, as it is sent in requests."""
    return int(time.time())


def sign_request(
    token: str,
    method: str,
    target: str,
    *,
    epoch: str = "",
    reset_key: str = "",
    content: str,
    now: int | None = None,
) -> str:
    """Return the header ``Authorization`` of one request. Each call uses a new nonce.

    ``target`` is path and query, ``epoch`` and ``reset_key`` are the headers ``Dgym-Epoch`` and ``Idempotency-Key``,
    and ``content`` is the SHA-256 of the body. The token itself is sent masked. It can only be read with its digest.
    """
    key, sent, nonce = token_digest(token), str(signing_time() if now is None else now), secrets.token_hex(16)
    proof = _masked(key, nonce, token.encode()).hex()
    signature = _sign(key, "request", method, target, epoch, reset_key, sent, nonce, content, proof)
    return f"{SCHEME} {sent}.{nonce}.{content}.{proof}.{signature}"


def read_request(
    digests: Mapping[Role, str], authorization: str, method: str, target: str, *, epoch: str = "", reset_key: str = ""
) -> SignedRequest | None:
    """Return the request if it is signed with the key of a role, by a caller that also has the role's token."""
    found = _FORM.fullmatch(authorization)
    if found is None:
        return None
    now, nonce, content, proof, signature = found.groups()
    # All keys are compared in constant time, so that the duration does not reveal anything about them.
    roles = []
    for role, key in digests.items():
        expected = _sign(key, "request", method, target, epoch, reset_key, now, nonce, content, proof)
        if hmac.compare_digest(expected, signature):
            roles.append(role)
    if not roles or len(proof) % 2:
        return None
    key = digests[roles[0]]
    token = _masked(key, nonce, bytes.fromhex(proof))
    if not hmac.compare_digest(hashlib.sha256(token).hexdigest(), key):
        return None
    return SignedRequest(
        role=roles[0], key=key, time=int(now), nonce=nonce, content=content, authorization=authorization
    )


def make_epochs(cluster_key: bytes, *, episode_uid: str, attempt: int, epoch: int) -> Epochs:
    """Return the header ``Dgym-Epoch`` of assignment ``epoch`` for each role: the number and the operator's proof."""
    key = token_digest(make_token(cluster_key, episode_uid=episode_uid, attempt=attempt, role=Role.OPERATE))
    prepare, drive = (f"{epoch}.{_sign(key, 'epoch', role, str(epoch))}" for role in (Role.PREPARE, Role.DRIVE))
    return Epochs(prepare=prepare, drive=drive)


def read_epoch(operate_digest: str, role: Role, text: str) -> int | None:
    """Return the number in the header ``Dgym-Epoch`` of a caller with ``role``.

    Return None if the operator's proof is invalid. ``operate_digest`` is the digest of the token of the role "operate",
    which neither agent pods nor drivers have.

    Raises:
        ValueError: ``text`` has another form.
    """
    found = _EPOCH.fullmatch(text)
    if found is None:
        raise ValueError("an epoch is a whole number, a dot and 64 hexadecimal digits")
    number, proof = found.groups()
    expected = _sign(operate_digest, "epoch", role.value, number)
    return int(number) if hmac.compare_digest(expected, proof) else None


def sign_answer(key: str, authorization: str, status: int, body: bytes) -> str:
    """Return the header ``Dgym-Signature`` of the answer to the request with that ``authorization``."""
    return _sign(key, "answer", authorization, str(status), content_digest(body))


def answer_is_signed(token: str, authorization: str, status: int, body: bytes, signature: str) -> bool:
    """Return whether the answer is from a sidecar with the key of ``token``, and belongs to this request."""
    expected = sign_answer(token_digest(token), authorization, status, body)
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogateescape"))


def _sign(key: str, kind: str, *fields: str) -> str:
    text = "\n".join((f"dgym {kind} 1", *fields))
    return hmac.new(key.encode(), text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _masked(key: str, nonce: str, data: bytes) -> bytes:
    mask = hashlib.shake_256(f"dgym token 1\n{key}\n{nonce}".encode()).digest(len(data))
    return bytes(one ^ other for one, other in zip(data, mask, strict=True))


def sign_outcome(key: str, result: Result, *, episode_uid: str, attempt: int) -> str:
    """Return the signature of an outcome. ``key`` is the digest of the token of the role "operate".

    Neither agent pods nor drivers have that key. The signature covers episode, attempt, reason, score, numbers of
    steps, rewrites and tokens, their price, and the patch. It consists of the patch's SHA-256 and an HMAC. It does not
    cover ``message``, ``notes`` and the address of the result, which the agent pod reports.
    """
    patch = content_digest(result.patch.encode("utf-8", "surrogateescape"))
    return f"{patch}.{_sign_fields(key, result, patch, episode_uid, attempt)}"


def outcome_is_signed(cluster_key: bytes, outcome: AttemptOutcome, *, episode_uid: str, attempt: int) -> bool:
    """Return whether the sidecar of this attempt has signed the outcome."""
    found = _OUTCOME_SIGNATURE.fullmatch(outcome.signature)
    if found is None:
        return False
    patch, signature = found.groups()
    key = token_digest(make_token(cluster_key, episode_uid=episode_uid, attempt=attempt, role=Role.OPERATE))
    return hmac.compare_digest(_sign_fields(key, outcome, patch, episode_uid, attempt), signature)


def patch_is_signed(patch: bytes, outcome: AttemptOutcome) -> bool:
    """Return whether ``patch``, the bytes of ``patch.diff``, has the digest in the signature of the outcome."""
    return outcome.signature.startswith(f"{content_digest(patch)}.")


def _sign_fields(key: str, outcome: AttemptOutcome, patch: str, episode_uid: str, attempt: int) -> str:
    scored = (outcome.resolved, outcome.score, outcome.max_score)
    counts = (outcome.steps, outcome.rewrites, outcome.input_tokens, outcome.output_tokens)
    numbers = (str(int(number)) for number in (attempt, *scored, *counts))
    return _sign(key, "outcome", episode_uid, outcome.reason.value, *numbers, outcome.price or "", patch)
