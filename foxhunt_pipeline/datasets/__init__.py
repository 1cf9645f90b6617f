"""Walk-forward windows over features and labels."""
