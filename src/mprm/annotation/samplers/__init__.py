"""Policies that answer questions."""
