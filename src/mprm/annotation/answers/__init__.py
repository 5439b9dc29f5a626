"""Whether a response is right: its answer found, read and compared."""
