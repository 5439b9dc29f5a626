"""PRM: load a checkpoint, score steps."""
