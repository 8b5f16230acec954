"""Runs episodes: plans them from manifests, plays each one, many in an event loop, on a laptop and in agent pods."""
