"""From rollouts to a process reward model."""
