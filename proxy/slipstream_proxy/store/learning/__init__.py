"""What is compared and by which reward: groups, rewards, pace, adapters."""
