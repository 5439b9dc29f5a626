"""Questions with gold answers, one file a format."""
