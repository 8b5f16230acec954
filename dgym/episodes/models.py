"""The models that episodes of one process share: connections, rate limits and places are per model, not per episode."""

from typing import TYPE_CHECKING

from dgym.llm import Model, load_models

if TYPE_CHECKING:
    from dgym.llm import ModelCatalog


def _person() -> Model:
    from dgym.agents import HumanModel

    return HumanModel()


class Models:
    """Opens each model once. All episodes that use one instance must run in the same event loop.

    Args:
        origin: Where the user's configuration comes from, for messages; empty: its path is named.
    """

    def __init__(self, *, origin: str = "") -> None:
        self._origin = origin
        self._catalogs: dict[str | None, ModelCatalog] = {}

    def catalog(self, config: str | None) -> "ModelCatalog":
        """The models of the file ``config``, read once; None: the user's own configuration."""
        if config not in self._catalogs:
            self._catalogs[config] = load_models(config, human=_person, origin=self._origin)
        return self._catalogs[config]

    def open(self, name: str, config: str | None) -> Model:
        """A model by name.

        Raises:
            ModelConfigError: There is no such model, or its configuration is wrong.
        """
        return self.catalog(config).open(name)

    async def close(self) -> None:
        """Close every model; opening one again is allowed."""
        for catalog in self._catalogs.values():
            await catalog.close()
