"""Pods of a sandbox pool without a cluster. The sidecar is a process without an attempt until it is bound."""

import msgspec

from dgym.sidecar.settings import PREFIX, PooledSettings, ProcessSettings
from dgym.wire import calls
from dgym.wire.http import BindRequest, Role, make_token, token_digest
from dgym.wire.signing import content_digest, sign_request
from tests.fakes.pods import Pod

POOL_POD = "pool-pod"
"""The operator's id of the pod. The bind token is derived from it."""
BIND_TOKEN = make_token(b"key", episode_uid=POOL_POD, attempt=0, role=Role.OPERATE)


class PooledPod(Pod):
    """``pod.start_process()`` starts a sidecar that waits. ``await pod.bind()`` binds it to the attempt."""

    def __init__(self, directory, environment, *, attempt=3, **settings):
        tokens = {role: make_token(b"key", episode_uid="uid", attempt=attempt, role=role) for role in Role}
        digests = {f"{role}_sha256": token_digest(token) for role, token in tokens.items()}
        super().__init__(directory, environment, **{"attempt": attempt, **digests, **settings})
        self.tokens = tokens

    @property
    def variables(self):
        pooled = PooledSettings(
            bind_sha256=token_digest(BIND_TOKEN),
            **{name: getattr(self.settings, name) for name in ProcessSettings.__struct_fields__},
        )
        return {PREFIX + name.upper(): str(getattr(pooled, name)) for name in PooledSettings.__struct_fields__}

    async def wait(self):
        """Start the runners and the sidecar's process. Returns the process when the pod is ready to be bound."""
        self.start_runners()
        process = self.start_process()
        await self.listening()
        await self.ready()
        return process

    def binding(self, **change):
        """The request that binds the pod to the attempt of ``settings``."""
        names = BindRequest.__struct_fields__
        return BindRequest(**{name: getattr(self.settings, name) for name in names} | change)

    async def bind(self, *, token=BIND_TOKEN, **change):
        """Bind the pod. Returns the status and the body of the response."""
        data = msgspec.json.encode(self.binding(**change))
        return await self.raw("POST", calls.BIND.path, token=token, data=data)


def recorded_bind(request):
    """The bytes of a ``bind`` request, as recorded from the network."""
    data = msgspec.json.encode(request)
    signature = sign_request(BIND_TOKEN, "POST", calls.BIND.path, content=content_digest(data))
    head = f"POST {calls.BIND.path} HTTP/1.1\r\nHost: pod\r\nAuthorization: {signature}\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data
