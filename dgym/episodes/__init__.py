"""Runs episodes: plans them from manifests, plays each one, and keeps several going in processes of their own."""
