"""Debugging episodes for LLM agents."""
