"""Aggregate step scores, choose the best of N."""
