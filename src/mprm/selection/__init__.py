"""Label counts, the Balanced-Information Score, strategies, selection."""
