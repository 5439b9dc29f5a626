"""Label counts of a rollout, the Balanced-Information Score, its parts, and the other scores."""
