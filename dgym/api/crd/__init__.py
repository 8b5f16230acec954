"""CustomResourceDefinitions made from the structs of ``dgym.api``.

``definitions`` composes the three manifests, ``schema`` turns a struct into a structural schema, and ``rules`` holds
the CEL rules between fields.
"""

from dgym.api.crd.definitions import custom_resource_definitions

__all__ = ["custom_resource_definitions"]
