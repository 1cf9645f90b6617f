"""Loops that fit a family to a window."""
