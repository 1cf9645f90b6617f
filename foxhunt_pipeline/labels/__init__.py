"""What came after a row of a view's clock."""
