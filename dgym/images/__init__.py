"""Images of tasks: the Dockerfile of a task's environment, its locked wheels, and the programs that build and push."""

from dgym.images.build import LOCAL_REGISTRY, Prepared, build_image, prepare_image, with_image
from dgym.images.builders import BUILDERS, Builder, BuilderName, find_builder
from dgym.images.dockerfile import Recipe, render

__all__ = [
    "BUILDERS",
    "LOCAL_REGISTRY",
    "Builder",
    "BuilderName",
    "Prepared",
    "Recipe",
    "build_image",
    "find_builder",
    "prepare_image",
    "render",
    "with_image",
]
