"""Conversations as training files hold them."""
