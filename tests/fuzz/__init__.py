"""Fuzzing of all readers of untrusted input: ``python -m tests.fuzz``, or ``make fuzz``."""
