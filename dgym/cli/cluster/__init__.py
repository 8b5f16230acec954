"""Access to a cluster for the commands: connection, views of objects, manifests to apply, and stored results."""
