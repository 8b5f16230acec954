"""A tool and an agent for dgym, found through their entry points."""
