"""Backbones, the one prompt, the Yes/No head, shared prefixes, checkpoints."""
