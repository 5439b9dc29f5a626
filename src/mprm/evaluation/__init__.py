"""Benchmarks with labelled steps, metrics, thresholds, intervals."""
