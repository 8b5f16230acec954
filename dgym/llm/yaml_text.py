"""YAML as a configuration of models needs it: versions of an API stay text, and nothing is said twice."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Safe, without dates, with unique keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; a key that is there twice is an error, because one of its values would be lost."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value[:80]!r} is there twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> Any:
    """The document in ``text``; ``yaml.YAMLError`` where it is none."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
