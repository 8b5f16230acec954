import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.llm._completions import read_reply
from dgym.llm._config import parse_settings
from dgym.llm._faults import Fault, RequestFailed


def read(message, finish_reason="stop", usage=None, **fields):
    settings = parse_settings({"model": "m", **fields}, {})
    document = {"id": "r1", "choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage}
    return read_reply(json.dumps(document).encode(), settings)


def call(arguments, name="view", identity="c1"):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_text_and_a_call():
    reply, usage = read({"content": " I look. ", "tool_calls": [call('{"path": "a.py"}')]}, "tool_calls")
    assert (reply.text, reply.finish_reason, usage) == ("I look.", "tool_calls", None)
    assert reply.calls[0].action == {"tool": "view", "arguments": {"path": "a.py"}}


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        ("", {}),
        ("  ", {}),
        (None, {}),
        ({"path": "a.py"}, {"path": "a.py"}),
        ('{"code": "a\nb"}', {"code": "a\nb"}),
        ('{"code": "\\ud83d"}', {"code": "?"}),
    ],
)
def test_arguments_in_lenient_json(arguments, decoded):
    reply, _ = read({"tool_calls": [call(arguments)]})
    assert reply.calls[0].arguments == decoded
    assert reply.calls[0].error is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ('{"path": ', "not valid JSON"),
        ('{"path": "a.py",, }', "not valid JSON"),
        ("[1]", "not a JSON object but a list"),
        ("null", "not a JSON object but null"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_arguments_that_cannot_be_read_are_explained_to_the_model(arguments, complaint):
    reply, _ = read({"tool_calls": [call(arguments)]})
    assert reply.calls[0].arguments is None
    assert reply.calls[0].error.startswith("The arguments of `view` are ")
    assert complaint in reply.calls[0].error
    assert reply.calls[0].raw == arguments


def test_cut_arguments_are_reported():
    reply, _ = read({"tool_calls": [call('{"code": "def f(')]}, "length")
    assert "reached its greatest length; write less" in reply.calls[0].error


def test_each_of_several_calls_has_its_own_id():
    reply, _ = read({"tool_calls": [call("{}"), call("{}"), call("{}", identity=None), "nonsense"]})
    assert [one.id for one in reply.calls] == ["c1", "r1-1", "r1-2"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_in_a_separate_field(field):
    reply, _ = read({"content": "Done.", field: "Let me see."})
    assert (reply.text, reply.reasoning) == ("Done.", "Let me see.")


@pytest.mark.parametrize(
    ("content", "finish_reason", "text", "reasoning"),
    [
        ("<think>Let me see.</think>\nDone.", "stop", "Done.", "Let me see."),
        ("Let me see.</think>Done.", "stop", "Done.", "Let me see."),
        ("Done.", "stop", "Done.", ""),
        ("<think>Let me see", "length", "", "Let me see"),
        ("Let me see", "length", "", "Let me see"),
        ("<think>Let me see", "stop", "", "Let me see"),
    ],
)
def test_reasoning_up_to_its_end_token(content, finish_reason, text, reasoning):
    reply, _ = read({"content": content}, finish_reason, reasoning_end_token="</think>")
    assert (reply.text, reply.reasoning) == (text, reasoning)


def test_reasoning_does_not_make_calls():
    content = "<think>I could <call>eval</call>.</think> <call>view a.py</call>"
    reply, _ = read({"content": content}, reasoning_end_token="</think>", tool_calling="text")
    assert [one.action for one in reply.calls] == ["view a.py"]


@pytest.mark.parametrize(
    ("content", "text", "actions"),
    [
        ("I look.\n<call>view a.py 3 9</call>", "I look.", ["view a.py 3 9"]),
        ("<call>rewrite a.py 3 <c>\nx = 1\n</c></call>", "", ["rewrite a.py 3 <c>\nx = 1\n</c>"]),
        ('<call>{"tool": "eval"}</call>', "", [{"tool": "eval", "arguments": {}}]),
        (
            '<tool_call>\n{"name": "view", "arguments": {"path": "a"}}\n</tool_call>',
            "",
            [{"tool": "view", "arguments": {"path": "a"}}],
        ),
        ("<call>eval</call><call>listdir</call>", "", ["eval", "listdir"]),
        ("<call>pdb b a.py:3", "", ["pdb b a.py:3"]),
        ("The loop is wrong.", "The loop is wrong.", []),
    ],
)
def test_calls_as_text(content, text, actions):
    reply, _ = read({"content": content}, tool_calling="text")
    assert reply.text == text
    assert [one.action for one in reply.calls] == actions
    assert len({one.id for one in reply.calls}) == len(actions)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("<call></call>", "nothing between"),
        ('<call>{"tool": </call>', "not valid JSON"),
        ('<call>{"path": "a"}</call>', 'A call as JSON has exactly the form {"tool": NAME'),
    ],
)
def test_calls_as_text_that_cannot_be_read(content, complaint):
    reply, _ = read({"content": content}, tool_calling="text")
    assert complaint in reply.calls[0].error


def test_content_in_parts_and_refusals():
    reply, _ = read({"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]})
    assert reply.text == "ab"
    reply, _ = read({"content": None, "refusal": "I cannot."})
    assert (reply.text, reply.refusal, reply.calls) == ("", "I cannot.", ())


def test_usage_is_exact_and_priced():
    reported = {
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 600},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    _, usage = read({"content": "x"}, usage=reported, input_price=1, cached_input_price=0.1, output_price=10)
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (
        1000,
        100,
        600,
        40,
    )
    assert (usage.price, usage.exact, usage.total_tokens) == ("0.00146", True, 1100)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, []])
def test_a_reply_without_usage_returns_none(usage):
    assert read({"content": "x"}, usage=usage)[1] is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"<html>Welcome</html>", Fault.BAD_REPLY),
        (b"", Fault.BAD_REPLY),
        (b"[]", Fault.BAD_REPLY),
        (b"{}", Fault.BAD_REPLY),
        (b'{"choices": []}', Fault.BAD_REPLY),
        (b'{"choices": [{"message": null}]}', Fault.BAD_REPLY),
        (b'{"error": {"code": 429, "message": "slow down"}}', Fault.RATE_LIMITED),
        (b'{"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}', Fault.FILTERED),
    ],
)
def test_an_invalid_reply_raises_request_failed(body, fault):
    with pytest.raises(RequestFailed) as caught:
        read_reply(body, parse_settings({"model": "m"}, {}))
    assert caught.value.fault is fault


keys = st.sampled_from(
    ["choices", "message", "content", "tool_calls", "function", "name", "arguments", "usage", "error", "id", "refusal"]
)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
)


@given(documents, documents, st.sampled_from(["native", "text"]))
def test_every_document_is_read_or_raises_request_failed(document, message, tool_calling):
    settings = parse_settings({"model": "m", "tool_calling": tool_calling, "reasoning_end_token": "</think>"}, {})
    for body in (document, {"choices": [{"message": message, "finish_reason": document}], "usage": document}):
        try:
            reply, _ = read_reply(json.dumps(body).encode(), settings)
        except RequestFailed:
            continue
        assert all(one.error or one.action is not None for one in reply.calls)
