"""Step metrics, thresholds, intervals, comparison, best-of-N."""
