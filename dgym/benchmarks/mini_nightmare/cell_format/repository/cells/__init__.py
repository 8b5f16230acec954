"""Tables of mixed values as text."""
