"""Tests of the parts of the debugger that work without a program: frames, commands, lines and evaluation."""

import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.runner.debugger import breakpoints, commands, parsing, wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=3), st.integers(1, 50))
def test_messages_survive_any_cutting_of_the_stream(messages, size):
    data = b"".join(map(wire.encode, messages))
    decoder = wire.Decoder()
    received = []
    for start in range(0, len(data), size):
        decoder.feed(data[start : start + size])
        while (message := decoder.next()) is not None:
            received.append(message)
    assert received == messages


def test_a_frame_of_absurd_size_is_refused():
    decoder = wire.Decoder()
    decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="frame"):
        decoder.next()


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("n", ["n"]),
        ("b 3\nc\np x", ["b 3", "c", "p x"]),
        ("n\nn", ["n", "n"]),
        ("for i in x:\n    print(i)\nn", ["for i in x:\n    print(i)", "n"]),
        ("if x:\n    a()\nelse:\n    b()", ["if x:\n    a()\nelse:\n    b()"]),
        ("def f():\n    x = 1\n\n    return x\nf()", ["def f():\n    x = 1\n\n    return x", "f()"]),
        ("x = [\n1,\n2]\np x", ["x = [\n1,\n2]", "p x"]),
        ("p [1,\n 2]\nc", ["p [1,\n 2]", "c"]),
        ("!x = (1,\n2)\nn", ["!x = (1,\n2)", "n"]),
        ("commands 1\nsilent\np x\nend\nc", ["commands 1", "silent", "p x", "end", "c"]),
        ("@decorate\ndef f():\n    pass", ["@decorate\ndef f():\n    pass"]),
        ("s = 1\ns.x = 2", ["s = 1", "s.x = 2"]),
        ("x = 'unclosed\nn", ["x = 'unclosed", "n"]),
    ],
)
def test_one_call_is_split_into_commands_and_statements(text, commands):
    assert parsing.split_commands(text) == commands


@given(st.text())
def test_any_text_splits_without_losing_a_character_of_its_lines(text):
    commands = parsing.split_commands(text)
    assert "".join("".join(commands).split()) == "".join(text.split()) or parsing.refusal(text)


@given(st.text())
def test_every_refusal_has_a_message(text):
    refused = parsing.refusal(text)
    assert refused is None or len(refused) > 10


SOURCE = textwrap.dedent(
    '''
    """Module."""
    import functools

    class Outer:
        class Inner:
            @functools.lru_cache(
                maxsize=None)
            def method(self, a,
                       b=1):
                """Documented."""
                return a

    if True:
        async def conditional():
            "only a docstring"

    def one_line(): return 1

    def nested():
        def inside():
            return 2
        return inside
    '''
)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Outer.Inner.method", 12),
        ("conditional", 16),
        ("one_line", 18),
        ("nested", 21),
        ("nested.inside", 22),
        ("Outer", None),
        ("missing", None),
    ],
)
def test_a_function_begins_where_its_first_statement_does(tmp_path, name, line):
    (tmp_path / "source.py").write_text(SOURCE)
    assert breakpoints.function_line(str(tmp_path / "source.py"), name) == line


def test_running_code_agrees_with_its_source(tmp_path):
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    namespace = {}
    exec(compile(SOURCE, str(path), "exec"), namespace)
    method = namespace["Outer"].Inner.method.__wrapped__
    assert breakpoints.first_line_of_code(method.__code__) == 12
    assert breakpoints.first_line_of_code(namespace["nested"].__code__) == 21
    assert {12, 22, 23} <= breakpoints.lines_of_file(str(path))
    assert 11 not in breakpoints.lines_of_file(str(path))


def test_files_that_cannot_be_read_have_no_lines(tmp_path):
    (tmp_path / "broken.py").write_text("def (:\n")
    assert breakpoints.lines_of_file(str(tmp_path / "broken.py")) == frozenset()
    assert breakpoints.function_line(str(tmp_path / "absent.py"), "f") is None


def test_names_of_the_frame_are_seen_inside_comprehensions():
    names = {"x": 1, "y": 9}
    exec("import sys; frame = sys._getframe()", names)
    assert commands.evaluate("[x + y for _ in [0]]", names["frame"], {"y": 2}) == [3]
    assert commands.evaluate("(lambda: x + y)()", names["frame"], {"y": 2}) == 3


def outer_value():
    value = 1
    yield sys._getframe()
    yield value


def test_assignments_reach_the_variables_of_a_frame():
    generator = outer_value()
    frame = next(generator)
    commands.execute("value = [value + n for n in (41,)][0]", frame, frame.f_locals)
    assert next(generator) == 42


def test_a_statement_that_nests_may_still_assign_globals():
    frame = sys._getframe()
    commands.execute("global assigned_here; assigned_here = [n for n in (1, 2)]", frame, frame.f_locals)
    assert globals().pop("assigned_here") == [1, 2]
    assert "n" not in globals()
