"""Simulations that confirm the paper's statements, or tell what holds in their place."""
