"""The agents behind a real LiteLLM proxy: ``make litellm``."""
