"""Program for ``ask``: parses TOML and INI. A request is ``[format, text]``."""

import configparser
import tomllib
from typing import Any


def answer(request: tuple[str, str]) -> dict[str, Any]:
    """Return the tables of a TOML document, or the options of each section of an INI file including the defaults."""
    form, text = request
    if form == "toml":
        return tomllib.loads(text)
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    return {name: dict(parser.items(name)) for name in parser.sections()}
