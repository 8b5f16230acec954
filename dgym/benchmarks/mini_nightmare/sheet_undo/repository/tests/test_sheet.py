import pytest

from sheet.editor import Editor


def editor(limit=100):
    return Editor([["pear", 3], ["apple", 5], ["plum", 1]], limit=limit)


def test_deleting_can_be_taken_back():
    one = editor()
    one.delete(0)
    assert one.grid.get(0, 0) == "apple"
    one.undo()
    assert one.grid.rows == [["pear", 3], ["apple", 5], ["plum", 1]]


def test_sorting_can_be_taken_back_and_made_again():
    one = editor()
    one.sort(1)
    one.undo()
    assert [row[0] for row in one.grid.rows] == ["pear", "apple", "plum"]
    one.redo()
    assert [row[0] for row in one.grid.rows] == ["plum", "pear", "apple"]


def test_nothing_to_undo():
    one = editor()
    one.undo()
    one.redo()
    assert one.grid.get(2, 1) == 1


def test_typing_can_be_taken_back():
    one = editor()
    one.type(1, 1, 50)
    one.type(1, 1, 500)
    one.undo()
    assert one.grid.get(1, 1) == 50
    one.undo()
    assert one.grid.get(1, 1) == 5


def test_an_error_leaves_the_grid_as_it_was():
    one = editor()
    with pytest.raises(IndexError):
        one.fill(1, [10, 20, 30, 40])
    assert [row[1] for row in one.grid.rows] == [3, 5, 1]


def test_old_states_are_forgotten():
    one = editor(limit=1)
    one.delete(0)
    one.delete(0)
    one.undo()
    one.undo()
    assert [row[0] for row in one.grid.rows] == ["apple", "plum"]
