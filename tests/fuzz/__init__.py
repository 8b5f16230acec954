"""Fuzzing of everything that reads what a stranger wrote: ``python -m tests.fuzz``, or ``make fuzz``."""
