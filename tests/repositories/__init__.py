"""Comparison of ``dgym init`` and ``dgym check`` with a developer's pytest, on git repositories of PyPI packages."""
