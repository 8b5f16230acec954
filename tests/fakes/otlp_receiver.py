"""Receiver of OTLP over HTTP. It decodes the received spans with the protocol's message types."""

import contextlib
import gzip
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, with ids in hexadecimal digits."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    failed: bool
    start: int
    end: int
    schema: str
    attributes: dict = field(hash=False)


class Receiver:
    """Collects spans and the headers of each request. ``url`` is a value for OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.headers.append(dict(request.headers))
        self.spans += decoded(ExportTraceServiceRequest.FromString(body))
        return web.Response(content_type="application/x-protobuf")

    def named(self, start: str) -> list[ReceivedSpan]:
        """The spans whose name begins with ``start``."""
        return [span for span in self.spans if span.name.startswith(start)]

    def one(self, start: str) -> ReceivedSpan:
        """The only span whose name begins with ``start``."""
        (found,) = self.named(start)
        return found


def decoded(message):
    for group in message.resource_spans:
        service = _attributes(group.resource)["service.name"]
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    service=service,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    kind=span.kind,
                    failed=span.status.code == 2,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    schema=scope.schema_url,
                    attributes=_attributes(span),
                )


def _attributes(message):
    found = {}
    for each in message.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@contextlib.asynccontextmanager
async def receiving():
    """A running receiver on a free port."""
    receiver = Receiver()
    application = web.Application(client_max_size=2**26)
    application.router.add_post("/v1/traces", receiver.receive)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
