"""Tests of the agents with a real LiteLLM proxy: ``make litellm``."""
