"""Reading and writing ``llm.yaml``: its path, references to the environment, its template, and errors with remedies."""

import difflib
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from dgym.documents import read_yaml
from dgym.errors import ModelConfigError
from dgym.llm.config import ModelSettings
from dgym.llm.secrets import Secret, decode_secret
from dgym.problems import describe

PATH_VARIABLE = "LLM_CONFIG_FILE_PATH"
FILE_NAME = "llm.yaml"

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the file has it: its settings, or why they cannot be used. One bad entry spoils no other."""

    name: str
    settings: ModelSettings | None = None
    problem: str | None = None


def default_path() -> Path:
    """Where the configuration is without an option: ``LLM_CONFIG_FILE_PATH``, else the user's own directory."""
    given = os.environ.get(PATH_VARIABLE)
    return Path(given).expanduser() if given else user_directory() / FILE_NAME


def user_directory() -> Path:
    """``~/.config/dgym``, or its place by the XDG rules."""
    root = os.environ.get("XDG_CONFIG_HOME")
    return (Path(root) if root else Path.home() / ".config") / "dgym"


def read_entries(
    path: Path, environment: Mapping[str, str] | None = None, *, origin: str = ""
) -> dict[str, ModelEntry]:
    """All models of the file by name. ``origin`` names the file in messages, in place of its path.

    Raises:
        ModelConfigError: The file cannot be read, or is not a mapping of names to settings.
    """
    shown = origin or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ModelConfigError(f"{shown}: cannot be read: {why}; `dgym init-llm-config` writes a template") from None
    content = _parse(text, shown)
    variables = os.environ if environment is None else environment
    return {name: _entry(name, raw, shown, variables) for name, raw in content.items()}


def _parse(text: str, shown: str) -> dict[str, Any]:
    documents = list(read_yaml(text))
    content = documents[0].value if documents else None
    problems = [problem for document in documents for problem in document.problems]
    if len(documents) > 1 and not problems:
        raise ModelConfigError(f"{shown}: holds several documents; put all models into one")
    if problems:
        raise ModelConfigError(describe(problems[0], shown))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ModelConfigError(f"{shown}: must map names of models to their settings; see `dgym init-llm-config`")
    for name in content:
        if not isinstance(name, str):
            raise ModelConfigError(
                f"{shown}: YAML reads the name {name!r} as something else than text; put it in quotes"
            )
    return content


def _entry(name: str, raw: Any, shown: str, variables: Mapping[str, str]) -> ModelEntry:
    try:
        settings = parse_settings(raw, variables)
    except ModelConfigError as error:
        return ModelEntry(name=name, problem=f"{shown}: model {name!r} {error}")
    return ModelEntry(name=name, settings=settings)


def parse_settings(raw: Any, variables: Mapping[str, str]) -> ModelSettings:
    """The settings of one model; the message of an error goes on after the model's name and shows no values."""
    if not isinstance(raw, dict):
        raise ModelConfigError("must be a mapping of settings, such as `model: gpt-4.1`")
    _refuse_unknown(raw)
    missing: list[str] = []
    resolved = _resolve(raw, variables, missing)
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise ModelConfigError(f"refers to the environment variable {names}, which is not set or empty; export it")
    try:
        settings = msgspec.convert(resolved, ModelSettings, dec_hook=decode_secret)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"is not valid: {_explain(error)}") from None
    if settings.problems:
        raise ModelConfigError("; ".join(settings.problems))
    return settings


def _refuse_unknown(raw: dict[Any, Any]) -> None:
    known = [field.name for field in msgspec.structs.fields(ModelSettings)]
    for key in raw:
        if key not in known:
            guess = difflib.get_close_matches(str(key).lower(), known, n=1)
            hint = f"did you mean {guess[0]}?" if guess else f"known are: {', '.join(known)}"
            raise ModelConfigError(f"has no setting {str(key)[:80]!r}; {hint}")


def _explain(error: msgspec.ValidationError) -> str:
    """The message of msgspec with the field first; it names types and bounds, never the value."""
    what, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".")
    return f"{field}: {what}" if field else what


def _resolve(value: Any, variables: Mapping[str, str], missing: list[str]) -> Any:
    """``value`` with every ``${NAME}`` and ``${NAME:-default}`` replaced, at any depth; unset names are collected."""
    if isinstance(value, dict):
        return {key: _resolve(item, variables, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, variables, missing) for item in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        found = variables.get(name) or default
        if found is None:
            missing.append(name)
            return ""
        return found

    return _REFERENCE.sub(replace, value)


def hub_token(environment: Mapping[str, str] | None = None) -> Secret | None:
    """The token for tokenizers that are not public."""
    found = (os.environ if environment is None else environment).get("HF_TOKEN")
    return Secret(found) if found else None


def template() -> str:
    """The template's text."""
    return files("dgym.llm").joinpath("llm_template.yaml").read_text(encoding="utf-8")


def write_template(path: Path, *, overwrite: bool) -> bool:
    """Write the template, readable by its owner only since keys may be put into it; False if something is there.

    Raises:
        ModelConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if overwrite:
            path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(template())
    return True
