"""Tests of the facts in result.json and the trajectory with which a run can be repeated."""

import hashlib
import json
import platform
import re
from importlib.metadata import version

import msgspec
import pytest

from tests.fakes.openai_server import Answer, Call, FakeOpenAI

SUBMIT = Answer(calls=(Call("submit"),))
HEX = re.compile(r"[0-9a-f]{64}")


async def test_result_and_header_record_what_ran(play, monkeypatch):
    monkeypatch.setenv("DGYM_TEST_USER", "value-of-a-variable")
    settings = {
        "generate_kwargs": {"top_p": 0.9, "user": "${DGYM_TEST_USER}", "metadata": {"api_key": "sk-in-the-body-1"}},
        "headers": {"X-Team": "value-of-a-header"},
        "api_key": "sk-the-key-of-the-model",
        "input_price": 2.5,
        "output_price": "10",
    }
    server = FakeOpenAI(script=[Answer(calls=(Call("listdir"), Call("view", {"path": "calc.py"}))), SUBMIT])
    played = await play(server, settings=settings, temperature="0.5", seed=7, parameters={"treeDepth": 1})
    result = json.loads((played.folder / "result.json").read_text())
    found, header = result["provenance"], played.lines[0]["provenance"]

    assert found["dgymVersion"] == version("dgym")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["dgymCommit"])
    assert (found["sandbox"], found["image"], found["taskDigest"]) == ("none", "", "t")
    assert found["parameters"] == {"treeDepth": 1}
    assert sorted(found["prompts"]) == ["system", "task"]
    assert all(HEX.fullmatch(digest) for digest in found["prompts"].values())
    reported = found["reportedBySandbox"]
    assert reported["interpreter"] == platform.python_version()
    installed = reported["distributions"]
    assert installed["pytest"] == version("pytest")
    assert "dgym" not in installed, "the environment of the task, not that of dgym"
    lines = "".join(f"{name}=={number}\n" for name, number in sorted(installed.items()))
    assert reported["distributionsDigest"] == hashlib.sha256(lines.encode()).hexdigest()
    assert reported["leftOut"] == 0
    left_out = "(not recorded)"
    assert found["model"] == {
        "requested": "scripted",
        "sampling": {
            "top_p": 0.9,
            "user": left_out,
            "metadata": {"api_key": left_out},
            "seed": 7,
            "temperature": 0.5,
        },
        "prices": {"input": "2.5", "output": "10"},
        "served": ["scripted-2026-01-01"],
        "systemFingerprints": ["fp_fake"],
    }
    assert header == {**found, "model": {**found["model"], "served": [], "systemFingerprints": []}}
    written = "".join(path.read_text() for path in played.folder.iterdir())
    for secret in ("value-of-a-variable", "value-of-a-header", "sk-in-the-body-1", "sk-the-key-of-the-model"):
        assert secret not in written


async def test_each_exchange_records_the_raw_arguments_and_the_digest_of_the_tools(play):
    raw = '{ "path":"calc.py",  "start": 1 }'
    server = FakeOpenAI(script=[Answer(calls=(Call("view", raw), Call("listdir", {}))), SUBMIT])
    played = await play(server)
    first, last = (exchange for line in played.lines[1:] for exchange in line.get("exchanges", ()))
    assert [call["raw"] for call in first["calls"]] == [raw, "{}"]
    assert (first["model"], first["systemFingerprint"]) == ("scripted-2026-01-01", "fp_fake")
    assert HEX.fullmatch(first["toolsDigest"])
    assert first["toolsDigest"] == last["toolsDigest"]


async def test_the_digest_of_a_prompt_covers_its_template_and_included_templates(play, tmp_path):
    (tmp_path / "own.j2").write_text('{% include "part.j2" %}')
    digests = []
    for number, part in enumerate(("One.", "Two.", "Two.")):
        (tmp_path / "part.j2").write_text(part)
        played = await play(FakeOpenAI(script=[SUBMIT]), name=f"e{number}", parameters={"systemPrompt": "own.j2"})
        digests.append(played.lines[0]["provenance"]["prompts"])
    one, two, again = digests
    assert one["system"] != two["system"]
    assert two == again
    assert one["task"] == two["task"]


async def test_a_failed_setup_still_has_a_header(play, new_task):
    played = await play(FakeOpenAI(), task=new_task(setupCommands=["exit 3"]))
    assert played.result.reason == "SetupFailed"
    assert [sorted(line) for line in played.lines] == [sorted(played.lines[0])]
    assert played.lines[0]["provenance"]["dgymVersion"] == version("dgym")
    assert played.result.provenance is not None
    assert played.result.provenance.sandbox == ""


@pytest.mark.parametrize("text", ['{"a": 1}', "x" * 2000])
async def test_a_long_parameter_is_recorded_by_its_digest(play, text):
    played = await play(
        FakeOpenAI(script=[SUBMIT]), parameters={"taskPrompt": {"inline": f"{{% raw %}}{text}{{% endraw %}}"}}
    )
    recorded = played.lines[0]["provenance"]["parameters"]["taskPrompt"]
    assert len(msgspec.json.encode(recorded)) < 1_100
    assert sorted(recorded) == (["sha256"] if len(text) > 1_000 else ["inline"])
