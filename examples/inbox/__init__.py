"""The inbox task: a mailbox, an agent that answers questions about it, and a small model that searches badly."""
