"""From an episode to the manifest of its pod, by Jinja templates that administrators may add to."""
