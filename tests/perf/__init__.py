"""Benchmarks: medians, ratios to a stated baseline and counts; never asserted, always printed (``make perf``)."""
