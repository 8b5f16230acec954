"""The grades of dgym compared with those of SWE-bench's own harness, on the same generated texts and rows.

``cases`` makes them, ``ours`` and ``official`` grade them. ``make conformance`` compares a thousand; a sample with the
official grades, recorded together with the harness's version, is in ``make test``.
"""
