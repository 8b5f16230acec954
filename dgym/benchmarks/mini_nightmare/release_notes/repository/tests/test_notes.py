import pytest

from notes.parser import parse
from notes.render import render, render_all
from notes.settings import Settings

SERVER = """\
%define DB database
= 2.0
* The DB is compressed
  and the DB, too.
"""
CLIENT = """\
= 1.4
* Choose a DB driver
"""


def test_abbreviations_are_written_out():
    (section,) = parse(SERVER, Settings())
    assert section.entries == ["The database is compressed and the database, too."]


def test_settings_bring_abbreviations_of_their_own():
    (section,) = parse(CLIENT, Settings(abbreviations={"DB": "data"}))
    assert section.entries == ["Choose a data driver"]


def test_long_entries_are_wrapped():
    text = render(parse("= 1\n* one two three four\n", Settings()), Settings(width=12))
    assert text == "1\n- one two\n  three four\n"


def test_entries_need_a_section():
    with pytest.raises(ValueError):
        parse("* lost\n", Settings())


def test_documents_do_not_know_each_other():
    assert render_all([SERVER, CLIENT]).endswith("-----\n1.4\n- Choose a DB driver\n")


def test_a_document_is_read_the_same_every_time():
    text = "= 1\n* A DB\n%define DB database\n"
    first = render(parse(text))
    assert first == "1\n- A DB\n"
    assert render(parse(text)) == first
