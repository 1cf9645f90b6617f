"""Decides what has to be rebuilt, and keeps what was."""
