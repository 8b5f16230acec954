from hypothesis import given
from hypothesis import strategies as st

from dgym.tools._context import shift_for_change, shift_for_edit
from dgym.wire import Breakpoint


def at(*lines: int, file: str = "a.py") -> tuple[Breakpoint, ...]:
    return tuple(Breakpoint(number=number, file=file, line=line) for number, line in enumerate(lines, 1))


@st.composite
def edits(draw: st.DrawFn):
    total = draw(st.integers(0, 20))
    start = draw(st.integers(1, total + 1))
    end = draw(st.integers(start - 1, total))
    return total, start, end, draw(st.integers(0, 8)), draw(st.lists(st.integers(1, max(total, 1)), max_size=6))


@given(edits())
def test_breakpoints_move_with_their_lines_after_an_edit(edit):
    total, start, end, new_count, lines = edit
    text = [f"tag {n}" for n in range(1, total + 1)]
    after = [*text[: start - 1], *["new"] * new_count, *text[end:]]
    breakpoints = at(*(line for line in lines if line <= total))
    kept, dropped = shift_for_edit(breakpoints, "a.py", start, end, new_count)
    where = {one.number: one.line for one in kept}
    for one in breakpoints:
        tag = text[one.line - 1]
        if tag in after:
            assert where[one.number] == after.index(tag) + 1
        else:
            assert one in dropped
    assert len(kept) + len(dropped) == len(breakpoints)


@given(
    st.lists(st.sampled_from(("keep", "drop", "insert before")), max_size=25),
    st.sampled_from(("\n", "\r\n", "\r")),
    st.sampled_from(("\n", "\r\n")),
)
def test_a_change_shifts_like_tagged_lines(fates, old_newline, new_newline):
    before = [f"tag {n}" for n in range(len(fates))]
    after = []
    for line, fate in zip(before, fates, strict=True):
        after += {"keep": [line], "drop": [], "insert before": ["new", line]}[fate]
    breakpoints = at(*range(1, len(before) + 1))
    kept, dropped = shift_for_change(breakpoints, "a.py", old_newline.join(before), new_newline.join(after))
    assert {one.number: after[one.line - 1] for one in kept} == {
        one.number: before[one.line - 1] for one in breakpoints if before[one.line - 1] in after
    }
    assert [one.number for one in dropped] == [n for n, fate in enumerate(fates, 1) if fate == "drop"]


def test_everything_else_about_a_breakpoint_stays():
    before = Breakpoint(
        number=7, file="a.py", line=3, condition="x > 1", ignore_count=2, hits=5, enabled=False, temporary=True
    )
    (after,), dropped = shift_for_edit([before], "a.py", 1, 0, 2)
    assert after == Breakpoint(
        number=7, file="a.py", line=5, condition="x > 1", ignore_count=2, hits=5, enabled=False, temporary=True
    )
    assert dropped == ()


def test_other_files_are_left_alone():
    breakpoints = at(1, 2, file="b.py")
    assert shift_for_edit(breakpoints, "a.py", 1, 2, 0) == (breakpoints, ())
    assert shift_for_change(breakpoints, "a.py", "x\ny\n", "") == (breakpoints, ())


def test_unchanged_lines_of_a_rewritten_range_keep_their_breakpoints():
    old, new = ["a = 1\n", "b = 2\n", "c = 3\n"], ["import x\n", "a = 1\n", "b = 3\n", "c = 3\n"]
    kept, dropped = shift_for_edit(at(10, 11, 12, 13), "a.py", 10, 12, 4, replaced=old, replacement=new)
    assert [(one.number, one.line) for one in kept] == [(1, 11), (3, 13), (4, 14)]
    assert [one.number for one in dropped] == [2]


def test_repeated_lines_do_not_confuse_an_edit():
    kept, dropped = shift_for_edit(at(1, 3, 6), "a.py", 2, 3, 1)
    assert [one.line for one in kept] == [1, 5]
    assert [one.line for one in dropped] == [3]
