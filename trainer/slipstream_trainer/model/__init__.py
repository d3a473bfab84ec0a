"""The model that is trained: its base, its LoRA, its memory, its arithmetic."""
