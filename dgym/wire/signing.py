"""Signatures between a sidecar and its callers, and the sidecar's signature of a verdict. Pure.

Containers of a pod share the network, so that a program of the sandbox may answer on the port of a sidecar that has
ended. The program has none of the keys: the key of a role is the SHA-256 of its token, in the sidecar's environment.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Mapping

import msgspec

from dgym.wire.http import Epochs, Role, make_token, token_digest
from dgym.wire.messages import EndReason, Outcome, Result

SCHEME = "Dgym"
"""The scheme of the header ``Authorization``: ``Dgym TIME.NONCE.CONTENT.PROOF.SIGNATURE``."""
SIGNATURE_HEADER = "Dgym-Signature"
"""The signature of an answer."""
WINDOW_SECONDS = 300
"""How far the clocks of a caller and a sidecar may differ; requests outside of it are refused."""
_EPOCH = re.compile(r"([0-9]{1,16})\.([0-9a-f]{64})")
_VERDICT = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})")
_FORM = re.compile(r"Dgym (\d{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})\.([0-9a-f]{2,512})\.([0-9a-f]{64})")


class SignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request with a valid signature; ``content`` is the SHA-256 that its body must have."""

    role: Role
    key: str
    time: int
    nonce: str
    content: str
    authorization: str


def content_digest(data: bytes | bytearray) -> str:
    """SHA-256 of a body, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def signing_time() -> int:
    """Now, in seconds, as requests carry it."""
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
    """The header ``Authorization`` of one request, each time with a new nonce.

    ``target`` is path and query, ``epoch`` and ``reset_key`` are the headers ``Dgym-Epoch`` and ``Idempotency-Key``,
    and ``content`` is the SHA-256 of the body. The token itself travels masked: reading it takes its digest.
    """
    key, sent, nonce = token_digest(token), str(signing_time() if now is None else now), secrets.token_hex(16)
    proof = _masked(key, nonce, token.encode()).hex()
    signature = _sign(key, "request", method, target, epoch, reset_key, sent, nonce, content, proof)
    return f"{SCHEME} {sent}.{nonce}.{content}.{proof}.{signature}"


def read_request(
    digests: Mapping[Role, str], authorization: str, method: str, target: str, *, epoch: str = "", reset_key: str = ""
) -> SignedRequest | None:
    """The request, if it is signed with one of the roles' keys by a caller that has the token too."""
    found = _FORM.fullmatch(authorization)
    if found is None:
        return None
    now, nonce, content, proof, signature = found.groups()
    # All are compared, each in constant time: the time it takes reveals nothing about any of them.
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
    """The header ``Dgym-Epoch`` for each role under assignment ``epoch``: the number and the operator's proof."""
    key = token_digest(make_token(cluster_key, episode_uid=episode_uid, attempt=attempt, role=Role.OPERATE))
    prepare, drive = (f"{epoch}.{_sign(key, 'epoch', role, str(epoch))}" for role in (Role.PREPARE, Role.DRIVE))
    return Epochs(prepare=prepare, drive=drive)


def read_epoch(operate_digest: str, role: Role, text: str) -> int | None:
    """The number in the header ``Dgym-Epoch`` of a caller in ``role``; None: the operator has not given it to the role.

    ``operate_digest`` is the digest of the token of the role "operate", which neither agents nor drivers have.

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
    """The header ``Dgym-Signature`` of the answer to the request with that ``authorization``."""
    return _sign(key, "answer", authorization, str(status), content_digest(body))


def answer_is_signed(token: str, authorization: str, status: int, body: bytes, signature: str) -> bool:
    """Whether the answer is one of a sidecar that has the key of ``token``, and belongs to this very request."""
    expected = sign_answer(token_digest(token), authorization, status, body)
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "surrogateescape"))


def _sign(key: str, kind: str, *fields: str) -> str:
    text = "\n".join((f"dgym {kind} 1", *fields))
    return hmac.new(key.encode(), text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _masked(key: str, nonce: str, data: bytes) -> bytes:
    mask = hashlib.shake_256(f"dgym token 1\n{key}\n{nonce}".encode()).digest(len(data))
    return bytes(one ^ other for one, other in zip(data, mask, strict=True))


def sign_verdict(key: str, result: Result, *, episode_uid: str, attempt: int) -> str:
    """The signature of a verdict under ``key``, the digest of the token of the role "operate".

    Neither agents nor drivers have that key. Signed are episode and attempt, reason, score, counts of steps, rewrites
    and tokens, their price, and the patch, whose SHA-256 stands before the HMAC. ``message``, ``notes`` and the
    result's address are the agent's own report.
    """
    patch = content_digest(result.patch.encode("utf-8", "surrogateescape"))
    return f"{patch}.{_sign_outcome(key, result, result.reason, patch, episode_uid, attempt)}"


def verdict_is_signed(
    cluster_key: bytes, outcome: Outcome | None, reason: EndReason, *, episode_uid: str, attempt: int
) -> bool:
    """Whether the sidecar of this attempt has signed the verdict."""
    found = _VERDICT.fullmatch(outcome.signature) if outcome is not None else None
    if outcome is None or found is None:
        return False
    patch, signature = found.groups()
    key = token_digest(make_token(cluster_key, episode_uid=episode_uid, attempt=attempt, role=Role.OPERATE))
    return hmac.compare_digest(_sign_outcome(key, outcome, reason, patch, episode_uid, attempt), signature)


def patch_is_signed(patch: bytes, outcome: Outcome) -> bool:
    """Whether ``patch``, the bytes of ``patch.diff``, is the one that the outcome's signature names."""
    return outcome.signature.startswith(f"{content_digest(patch)}.")


def _sign_outcome(key: str, outcome: Outcome, reason: EndReason, patch: str, episode_uid: str, attempt: int) -> str:
    scored = (outcome.resolved, outcome.score, outcome.max_score)
    counts = (outcome.steps, outcome.rewrites, outcome.input_tokens, outcome.output_tokens)
    numbers = (str(int(number)) for number in (attempt, *scored, *counts))
    return _sign(key, "verdict", episode_uid, reason.value, *numbers, outcome.price or "", patch)
