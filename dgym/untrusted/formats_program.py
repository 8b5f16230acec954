"""Program of ``ask``: answers ``[format, text]`` with the tables of a TOML document or the sections of an INI file."""

import configparser
import tomllib
from typing import Any


def answer(request: tuple[str, str]) -> dict[str, Any]:
    """The tables; of an INI file the options of each section, with those of its defaults."""
    form, text = request
    if form == "toml":
        return tomllib.loads(text)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    return {name: dict(parser.items(name)) for name in parser.sections()}
