"""Attacks on dgym: what is tried, the tests that try it, and how each ended in every place where it was run.

A test that plays an attack has the marker ``attack`` with the id of an entry of the catalog. Where ``DGYM_ATTACKS``
names a directory, every process of pytest leaves its outcomes there, and ``python -m hack.attacks --records`` makes the
table of docs/attacks.md of them. Beside it, what is compared after a run on a cluster: rights with what was asked of
the API server, and every text that dgym left with the Secrets that it was given.
"""
