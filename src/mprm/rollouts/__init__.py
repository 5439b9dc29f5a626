"""What a rollout is; reading, checking and writing each format it comes in."""
