"""Runs a task's entrypoint and reports the outcomes on a separate descriptor, which the program's output cannot forge.

The trusted side starts ``wrapper.py``, whose code is in ``stages``. It starts the entrypoint under ``start``: pytest
with a reporting plugin, or a script or module whose end is observed. ``shell_line`` is for an entrypoint that needs a
shell. ``canary`` is a test that must fail. ``script`` runs an evaluation script and parses its output. Forgery by code
inside the tests' process is not detected here; the review of the patch marks such code.
"""
