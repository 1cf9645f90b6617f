"""Object stores: a folder or an S3 bucket behind one protocol with conditional writes."""
