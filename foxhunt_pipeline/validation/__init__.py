"""What makes market data fit to learn from."""
