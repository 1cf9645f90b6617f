"""Model families, one a file, under one contract."""
