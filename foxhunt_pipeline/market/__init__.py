"""Raw DBN files, sessions and tables."""
