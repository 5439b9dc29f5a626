"""The benchmarks that can be read: one file a format."""
