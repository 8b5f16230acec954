"""CustomResourceDefinitions made from the structs of ``dgym.api``.

``definitions`` composes the three manifests with their structural schemas, and ``rules`` holds the CEL rules between
fields.
"""

from dgym.api.crd.definitions import custom_resource_definitions

__all__ = ["custom_resource_definitions"]
