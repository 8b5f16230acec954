"""A table that remembers what it was."""
