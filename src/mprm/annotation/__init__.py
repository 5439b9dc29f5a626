"""From questions to rollouts with Monte-Carlo step scores, and to candidate solutions."""
