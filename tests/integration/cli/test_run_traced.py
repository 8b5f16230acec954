"""Tests of the traces of ``dgym run``: it sends them as the OTEL_* variables require, and works without a collector."""

import asyncio
import socket

from tests.fakes.otlp_receiver import receiving


async def test_a_run_is_traced_and_the_sandbox_gets_no_trace_variables(folder, monkeypatch):
    look = '{"tool": "bash", "arguments": {"command": "env"}}\n'
    walk = folder.path / "walk.jsonl"
    walk.write_text(look + walk.read_text())
    async with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=c2VjcmV0")
        done = await asyncio.to_thread(folder.run_process)
    assert done.returncode == 0, done.stderr
    (attempt,) = folder.attempts()
    trajectory = (attempt / "trajectory.jsonl").read_text()
    assert "PATH=" in trajectory
    assert "c2VjcmV0" not in trajectory
    root, invoked = receiver.one("episode calc-0"), receiver.one("invoke_agent replay")
    assert (root.parent_id, invoked.parent_id, root.service) == ("", root.span_id, "dgym")
    assert root.attributes["dgym.reason"] == "Resolved"
    assert invoked.attributes["gen_ai.conversation.id"] == attempt.parent.name
    assert receiver.one("execute_tool rewrite").parent_id == invoked.span_id
    assert receiver.one("score").attributes["dgym.score"] == 1
    assert {each.trace_id for each in receiver.spans} == {root.trace_id}
    assert all("gen_ai.tool.call.result" not in each.attributes for each in receiver.spans)


def test_an_unreachable_collector_does_not_fail_the_run(folder, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        done = folder.run()
    assert done.returncode == 0, done.stderr
    assert "1 resolved" in done.stdout
    assert done.stderr.count("Traceback") == 0
