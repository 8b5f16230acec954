from pathlib import Path

import pytest

from hack.tables import Section, table

PAGE = "# Page\n\n<!-- one: written by make it -->\n| a | b |\n|---|---|\n| 1 | |\n<!-- /one -->\nafter\n"


def test_a_section_is_read_and_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    section = Section(page, "one")
    assert section.rows() == [["1", ""]]
    section.write(table(("a", "b"), [("2", "3"), ("4", "")]))
    assert section.rows() == [["2", "3"], ["4", ""]]
    section.write("| a | b |\n|---|---|\n| 1 | |\n")
    assert page.read_text() == PAGE


def test_a_page_without_the_marks_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    with pytest.raises(ValueError, match=r"page\.md: the marks of the section two are missing"):
        Section(page, "two").write("")
    assert page.read_text() == PAGE
