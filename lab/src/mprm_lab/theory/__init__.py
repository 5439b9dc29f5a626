"""Simulations that verify the paper's analysis."""
