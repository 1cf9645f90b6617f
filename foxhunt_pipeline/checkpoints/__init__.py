"""Checkpoints: the file format, content-addressed storage, and releases."""
