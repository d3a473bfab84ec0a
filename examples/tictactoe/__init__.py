"""The tic-tac-toe task: the game, an agent on LangGraph, and a small model that plays badly."""
