"""The configured models by name; opens each at most once."""

import difflib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dgym.errors import ModelConfigError
from dgym.llm.config import ModelSettings
from dgym.llm.human import NAME as HUMAN
from dgym.llm.human import HumanModel, OpenTerminal
from dgym.llm.loading import ModelEntry, default_path, hub_token, read_entries
from dgym.llm.protocol import Model
from dgym.llm.remote import RemoteModel
from dgym.llm.tokens import TokenCounter, load_tokenizer


def load_models(
    path: str | Path | None = None, *, terminal: OpenTerminal | None = None, origin: str = ""
) -> "ModelCatalog":
    """The models of ``path``, else of ``LLM_CONFIG_FILE_PATH``, else of ``~/.config/dgym/llm.yaml`` if there is one.

    Args:
        path: The configuration file; it must exist.
        terminal: Opens the terminal for the model ``human``, such as ``dgym.agents.console.open_console``.
        origin: Where the file comes from, such as a value of the chart; messages name it in place of the path.

    Raises:
        ModelConfigError: The file is missing or unreadable. The faults of one model's entry are raised when that
            model is opened.
    """
    given = Path(path).expanduser() if path is not None else default_path()
    if path is None and not given.exists():
        return ModelCatalog({}, path=given, terminal=terminal, origin=origin)
    return ModelCatalog(read_entries(given, origin=origin), path=given, terminal=terminal, origin=origin)


class ModelCatalog:
    """Models by name. A model is opened once; its connections, limits and endpoints are shared by all who open it."""

    def __init__(
        self, entries: Mapping[str, ModelEntry], *, path: Path, terminal: OpenTerminal | None = None, origin: str = ""
    ) -> None:
        self.path = path
        self._origin = origin
        self.entries = dict(entries)
        self._terminal = terminal
        self._open: dict[str, Model] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Every model that may be asked for; ``human`` is always there."""
        return (*self.entries, *(() if HUMAN in self.entries else (HUMAN,)))

    def is_interactive(self, name: str) -> bool:
        """Whether a person answers, so that episodes run alone and in the main process."""
        return name == HUMAN and HUMAN not in self.entries

    def settings(self, name: str) -> ModelSettings:
        """The settings of a configured model.

        Raises:
            ModelConfigError: There is no such model, or its entry is wrong.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ModelConfigError(self._unknown(name))
        if entry.settings is None:
            raise ModelConfigError(entry.problem or f"{self._origin or self.path}: model {name!r} cannot be used")
        return entry.settings

    def open(self, name: str) -> Model:
        """The model of that name. Fetches its tokenizer the first time, where one is configured.

        Raises:
            ModelConfigError: There is no such model, its entry is wrong, or a package it needs is missing.
        """
        if name not in self._open:
            human = self.is_interactive(name)
            self._open[name] = self._human() if human else open_remote(name, self.settings(name))
        return self._open[name]

    async def close(self) -> None:
        """Close every model that was opened."""
        while self._open:
            _, model = self._open.popitem()
            await model.close()

    def _human(self) -> HumanModel:
        if self._terminal is None:
            raise ModelConfigError(f"the model {HUMAN!r} needs a terminal; run it with `dgym run`")
        return HumanModel(self._terminal)

    def _unknown(self, name: str) -> str:
        if self._origin and not self.entries:
            return f"there is no model {name!r}: {self._origin} names none; set it and upgrade the release"
        if not self.path.exists():
            return f"there is no model {name!r}: {self.path} does not exist; `dgym init-llm-config` writes a template"
        guess = difflib.get_close_matches(name, self.names, n=1)
        hint = f"did you mean {guess[0]!r}?" if guess else f"there are: {', '.join(self.names)}"
        return f"{self._origin or self.path}: there is no model {name!r}; {hint}"


def open_remote(name: str, settings: ModelSettings) -> RemoteModel:
    """A model of its own for these settings.

    Raises:
        ModelConfigError: A package it needs is missing, or its tokenizer cannot be loaded.
    """
    try:
        from dgym.llm.openai_client import OpenAIConnection
    except ModuleNotFoundError as error:
        raise ModelConfigError(
            f"model {name!r} needs the package {error.name}; install it with: pip install 'dgym[agent]'"
        ) from None
    get_token = None
    if settings.scope is not None:
        from dgym.llm.openai_client import token_source

        get_token = token_source(settings.scope)
    count = {} if settings.tokenizer is None else {"count_text": load_tokenizer(settings.tokenizer, hub_token())}
    connect = partial(OpenAIConnection, settings, get_token=get_token)
    return RemoteModel(name, settings, connect, counter=TokenCounter(**count))
