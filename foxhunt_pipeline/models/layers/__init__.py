"""Blocks that families share."""
