"""Ten small programs with bugs that are hard to find by reading and easy to find at run time."""
