import random

from hypothesis import given
from hypothesis import strategies as st

from dgym.workspace import lines as lines_module
from dgym.workspace.lines import Block, matching_blocks

texts = st.lists(st.sampled_from("abcdef"), max_size=30)


def check(before, after, blocks):
    """The blocks align equal lines, ascend in both texts and do not touch each other."""
    i = j = -1
    for block in blocks:
        assert block.size > 0
        assert before[block.i : block.i + block.size] == after[block.j : block.j + block.size]
        assert block.i >= i
        assert block.j >= j
        assert (block.i, block.j) != (i, j)
        i, j = block.i + block.size, block.j + block.size
    assert i <= len(before)
    assert j <= len(after)


@given(texts, texts)
def test_blocks_align_equal_lines(before, after):
    check(before, after, matching_blocks(before, after))


@given(texts)
def test_equal_texts_are_one_block(text):
    assert matching_blocks(text, text) == ([Block(0, 0, len(text))] if text else [])


def test_large_texts_are_divided_at_lines_that_occur_once():
    shuffler = random.Random(7)
    before = [f"line {n}" if n % 3 else "repeated" for n in range(6000)]
    after = list(before)
    for at in sorted(shuffler.sample(range(6000), 300), reverse=True):
        after[at : at + 1] = shuffler.choice(([], ["new"], ["new", "newer"]))
    blocks = matching_blocks(before, after)
    check(before, after, blocks)
    assert sum(block.size for block in blocks) > 5000


def test_texts_without_anything_in_common_cost_no_time():
    before = ["x"] * 3000 + ["y"]
    after = ["z"] * 3000 + ["w"]
    assert matching_blocks(before, after) == []
    assert lines_module._AFFORDABLE < 3001 * 3001


def test_a_longest_ascending_chain_is_kept():
    before = [*map(str, range(1000)), "moved"]
    after = ["moved", "first", *map(str, range(1000)), "last"]
    assert matching_blocks(before, after) == [Block(0, 2, 1000)]
