"""vLLM: how it is asked, started and examined."""
