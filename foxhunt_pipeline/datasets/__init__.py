"""What models train on: the manifest of sessions and walk-forward windows, and its reader."""
