"""What is known at a row of a view's clock."""
