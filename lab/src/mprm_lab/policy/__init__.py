"""Small vision-language policies of the published architectures, trained from scratch on the world's solutions."""
