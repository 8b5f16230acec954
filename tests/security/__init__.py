"""Records of attacks on dgym: a catalog, the tests that run the attacks, and their outcomes in every environment.

A test that runs an attack has the marker ``attack`` with the id of a catalog entry. If ``DGYM_ATTACKS`` is a directory,
every process of pytest writes its outcomes there. ``python -m tests.security --records`` writes the table of
docs/attacks.md from them.

Two other modules check a run on a cluster: ``rights`` compares the granted rights with the requests to the API server,
and ``leaks`` searches all texts that dgym wrote for Secrets.
"""
