"""Checkpoint files and their publication."""
