"""Runs a task's entrypoint so that its report cannot be mistaken for, or easily forged by, what the program prints.

``wrapper.py`` is started by the trusted side. It starts the entrypoint under ``start``: pytest with a reporting plugin,
or a script or module whose end is observed; a line that needs a shell gets ``shell_line``. ``canary`` is a test that
must fail. ``script`` runs an evaluation script, whose text ``logs`` reads. Forgery by code inside the tests' process is
not detected here: the review of the patch marks it.
"""
