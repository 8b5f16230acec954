from datetime import date

from cells.styles import Style
from cells.table import layout, to_csv
from cells.writer import Writer


def test_each_type_has_its_form():
    assert Writer().row([None, "a", 7, 2.5, date(2024, 5, 1)]) == ["-", "a", "7", "2.50", "01.05.2024"]
    assert Writer(Style(yes="ja", no="nein")).row([True, False]) == ["ja", "nein"]


def test_values_that_cannot_be_kept():
    assert Writer().cell([1, 2]) == "[1, 2]"


def test_repeated_values_are_written_once():
    writer = Writer()
    writer.row(["a", "b", "a", "a"])
    assert writer.saved == 2


def test_texts_with_commas_are_quoted():
    assert to_csv(["name"], [["Oak, red"], ['2" pipe']]) == 'name\n"Oak, red"\n"2"" pipe"\n'


def test_columns_are_as_wide_as_needed():
    assert layout(["id", "tree"], [[12, "oak"], [7, "maple"]]) == [
        "id | tree",
        "---+------",
        "12 | oak",
        "7  | maple",
    ]


def test_stock_list():
    rows = [[1, "oak", True, 1.0], [2, "elm", False, 0.0], [0, "ash", True, 12.5]]
    assert to_csv(["id", "tree", "evergreen", "metres"], rows) == (
        "id,tree,evergreen,metres\n1,oak,yes,1.00\n2,elm,no,0.00\n0,ash,yes,12.50\n"
    )


def test_answers_and_counts():
    assert layout(["open", "visits"], [[True, 0], [False, 1]]) == [
        "open | visits",
        "-----+-------",
        "yes  | 0",
        "no   | 1",
    ]
