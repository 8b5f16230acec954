"""Calls of a telephone exchange and what they cost."""
