"""Packages from PyPI as git checkouts: ``dgym init`` and ``dgym check`` compared with a developer's pytest."""
