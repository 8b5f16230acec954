"""The worker of an agent pod: the operator assigns episodes to it, and it plays many of them in one process."""
