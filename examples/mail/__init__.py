"""Mail research in a thousand mails: a task for an agent built with Anthropic's SDK."""
