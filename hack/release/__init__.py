"""Builds the files of a release reproducibly: ``python -m hack.release``."""
