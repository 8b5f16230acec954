import pytest

from league.results import parse
from league.season import Season

REPORT = """
1; Reds 2:1 Blues
1; Greens 0:0 Old Town
2; Blues 4:0 Greens
2; Old Town 1:3 Reds
3; Reds 0:1 Greens
3; Blues 1:0 Old Town
"""


def test_results_are_parsed():
    assert parse("7; Old Town 1:3 Reds") == (7, "Old Town", "Reds", 1, 3)
    with pytest.raises(ValueError):
        parse("Old Town - Reds")


def test_the_table_after_the_last_day():
    assert Season(REPORT).standings() == [
        ("Blues", 3, "6:2", 6),
        ("Reds", 3, "5:3", 6),
        ("Greens", 3, "1:4", 4),
        ("Old Town", 3, "1:4", 1),
    ]


def test_the_order_of_the_report_does_not_matter():
    shuffled = "\n".join(reversed(REPORT.strip().splitlines()))
    assert Season(shuffled).standings() == Season(REPORT).standings()


def test_an_empty_season():
    assert Season("").standings() == []
    assert Season("").leaders() == {}


def test_goals_of_a_day():
    season = Season(REPORT)
    assert [season.goals(day) for day in (1, 2, 3, 4)] == [3, 8, 2, 0]
    assert season.dullest() == 3


def test_leaders_day_by_day():
    season = Season(REPORT)
    assert season.leaders() == {1: "Reds", 2: "Reds", 3: "Blues"}
    assert season.weeks_at_the_top("Reds") == 2
