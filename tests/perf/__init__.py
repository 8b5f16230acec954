"""Benchmarks that print medians, ratios to a baseline and counts, without assertions (``make perf``)."""
