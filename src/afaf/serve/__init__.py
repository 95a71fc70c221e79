"""`afaf serve`: a page and an HTTP API where a model file is taught and asked."""
