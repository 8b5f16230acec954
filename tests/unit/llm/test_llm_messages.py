import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dgym.llm import Message, ModelCall
from dgym.llm._calls import read_calls
from dgym.llm._completions import request_body
from dgym.llm._config import parse_settings

VIEW = {
    "name": "view",
    "description": "Show a file.\n\nWith numbers.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The file."}, "start": {"type": "integer"}},
        "required": ["path"],
    },
}
SYSTEM = Message(role="system", content="Debug.")
TASK = Message(role="user", content="There is a bug.")
CALL = ModelCall(id="c1", tool="view", arguments={"path": "a.py"}, raw='{"path": "a.py"}')
REPLY = Message(role="assistant", content="I look.", calls=(CALL,))
RESULT = Message(role="tool", content="1 x = 1", call_id="c1")
HISTORY = [SYSTEM, TASK, REPLY, RESULT]


def body(messages, tools=(VIEW,), seed=None, temperature=None, **fields):
    settings = parse_settings({"model": "m", **fields}, {})
    return request_body(settings, messages, tools, seed=seed, temperature=temperature)


def test_calls_and_results_are_native():
    found = body(HISTORY)
    assert found["messages"][2:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "view", "arguments": '{"path": "a.py"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1 x = 1"},
    ]
    assert found["tools"] == [{"type": "function", "function": VIEW}]


def test_without_tools_none_are_sent():
    assert "tools" not in body([TASK], tools=())


def test_values_of_the_episode_take_precedence_and_ignored_parameters_are_removed():
    given = {"generate_kwargs": {"temperature": 0.9, "max_tokens": 100, "top_k": 5}}
    assert body([TASK], **given)["temperature"] == 0.9
    found = body([TASK], seed=0, temperature="0.2", **given)
    assert (found["temperature"], found["seed"], found["max_tokens"], found["top_k"]) == (0.2, 0, 100, 5)
    found = body([TASK], seed=3, temperature="0.2", ignore_kwargs=["seed", "temperature", "top_k"], **given)
    assert not {"seed", "temperature", "top_k"} & found.keys()


def test_without_a_system_prompt_it_becomes_part_of_the_users_message():
    found = body(HISTORY, system_prompt_support=False)["messages"]
    assert found[0] == {"role": "user", "content": "Debug.\n\nThere is a bug."}
    assert [message["role"] for message in found] == ["user", "assistant", "tool"]


def test_as_text_there_are_only_alternating_messages_of_user_and_assistant():
    again = Message(role="user", content="Go on.")
    found = body([*HISTORY, again], tool_calling="text")
    assert "tools" not in found
    assert [message["role"] for message in found["messages"]] == ["system", "user", "assistant", "user"]
    system, _, assistant, result = (message["content"] for message in found["messages"])
    assert system.startswith("Debug.\n\nTo call a tool")
    assert "- view path [start]: Show a file. With numbers.\n    path: The file." in system
    assert assistant == 'I look.\n<call>{"path": "a.py"}</call>' or assistant.startswith("I look.\n<call>")
    assert result == "Result of view:\n1 x = 1\n\nGo on."


def test_calls_that_were_written_as_text_are_sent_back_as_text():
    _, calls = read_calls("<call>rewrite a.py 1:2 <c>x = 1\ny = 2</c></call>", first_id="t")
    found = body([TASK, Message(role="assistant", content="So.", calls=calls)], tool_calling="text")
    assert found["messages"][-1]["content"] == "So.\n<call>rewrite a.py 1:2 <c>x = 1\ny = 2</c></call>"


def test_a_history_that_servers_would_refuse_is_made_acceptable():
    broken = ModelCall(id="c1", tool="search the web!", raw='{"q": ', error="not valid")
    nameless = ModelCall(id="c2", tool="", arguments={})
    calls = body([TASK, Message(role="assistant", content="", calls=(broken, nameless))])["messages"][-1]
    assert calls["content"] is None
    first, second = (call["function"] for call in calls["tool_calls"])
    assert first == {"name": "search_the_web_", "arguments": json.dumps({"not_valid": '{"q": '})}
    assert second == {"name": "unknown", "arguments": "{}"}


text = st.text(max_size=20)
calls = st.builds(
    ModelCall,
    id=text,
    tool=text,
    arguments=st.none() | st.dictionaries(text, text, max_size=2),
    raw=text,
)
messages = st.lists(
    st.one_of(
        st.builds(Message, role=st.sampled_from(["system", "user"]), content=text),
        st.builds(Message, role=st.just("assistant"), content=text, calls=st.lists(calls, max_size=2).map(tuple)),
        st.builds(Message, role=st.just("tool"), content=text, call_id=text),
    ),
    max_size=8,
)


@given(messages, st.sampled_from(["native", "text"]), st.booleans())
def test_every_history_is_sent_in_a_valid_form(history, tool_calling, system):
    found = body(history, tool_calling=tool_calling, system_prompt_support=system)["messages"]
    roles = [message["role"] for message in found]
    if not system:
        assert "system" not in roles
    if tool_calling == "text":
        assert set(roles) <= {"system", "user", "assistant"}
        assert all(one != two for one, two in pairwise(roles))
    for message in found:
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert 1 <= len(call["function"]["name"]) <= 64
