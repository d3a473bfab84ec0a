"""Customer service of a shop and of an airline: a task for an agent built with the OpenAI Agents SDK."""
