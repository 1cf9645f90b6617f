"""Object stores: a folder or S3."""
