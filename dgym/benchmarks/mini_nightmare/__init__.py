"""Ten small programs whose bugs are hard to see by reading and plain at run time."""
