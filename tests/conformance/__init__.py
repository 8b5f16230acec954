"""Comparison of dgym's grades with those of SWE-bench's own harness, on the same generated texts and rows.

``cases`` generates the cases and ``graders`` grades them. ``make conformance`` compares many cases. ``make test``
compares a sample, for which the official grades and the harness's version are recorded.
"""
