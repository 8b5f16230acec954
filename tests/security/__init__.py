"""Attacks on dgym: what is tried, the tests that try it, and how each ended in every place where it was run.

A test that plays an attack has the marker ``attack`` with the id of an entry of the catalog. Where ``DGYM_ATTACKS``
names a directory, every process of pytest leaves its outcomes there. ``python -m tests.security --records`` writes the
table of docs/attacks.md from them.

Two other modules compare what a run on a cluster leaves: ``rights`` the granted rights with the requests to the API
server, and ``leaks`` every text that dgym wrote with the Secrets that it was given.
"""
