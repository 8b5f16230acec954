import random

from hypothesis import given
from hypothesis import strategies as st

from dgym.workspace._text import LineMatcher

texts = st.lists(st.sampled_from("abcdef"), max_size=30)


def matching_blocks(before, after):
    *blocks, end = LineMatcher(before, after).get_matching_blocks()
    assert end == (len(before), len(after), 0)
    return blocks


def check(before, after, blocks):
    """Check that the blocks align equal lines, ascend in both texts and do not touch each other."""
    i = j = -1
    for block in blocks:
        assert block.size > 0
        assert before[block.a : block.a + block.size] == after[block.b : block.b + block.size]
        assert block.a >= i
        assert block.b >= j
        assert (block.a, block.b) != (i, j)
        i, j = block.a + block.size, block.b + block.size
    assert i <= len(before)
    assert j <= len(after)


@given(texts, texts)
def test_blocks_align_equal_lines(before, after):
    check(before, after, matching_blocks(before, after))


@given(texts)
def test_equal_texts_are_one_block(text):
    assert matching_blocks(text, text) == ([(0, 0, len(text))] if text else [])


def test_large_texts_are_divided_at_lines_that_occur_once():
    shuffler = random.Random(7)
    before = [f"line {n}" if n % 3 else "repeated" for n in range(6000)]
    after = list(before)
    for at in sorted(shuffler.sample(range(6000), 300), reverse=True):
        after[at : at + 1] = shuffler.choice(([], ["new"], ["new", "newer"]))
    blocks = matching_blocks(before, after)
    check(before, after, blocks)
    assert sum(block.size for block in blocks) > 5000


def test_texts_without_common_lines_have_no_matching_blocks():
    before = ["x"] * 3000 + ["y"]
    after = ["z"] * 3000 + ["w"]
    assert matching_blocks(before, after) == []


def test_a_large_text_with_many_changes_is_compared_quickly():
    before = [f"line {n}" for n in range(10_000)]
    after = [line if n % 2 else f"other {n}" for n, line in enumerate(before)]
    blocks = matching_blocks(before, after)
    check(before, after, blocks)
    assert sum(block.size for block in blocks) == 5000


def test_a_longest_ascending_chain_is_kept():
    before = [*map(str, range(1000)), "moved"]
    after = ["moved", "first", *map(str, range(1000)), "last"]
    assert matching_blocks(before, after) == [(0, 2, 1000)]
