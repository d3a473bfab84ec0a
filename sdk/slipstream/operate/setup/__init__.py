"""What connects an agent, and what a first configuration says."""
