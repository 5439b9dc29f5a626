"""One file a source of the sample corpus: what its problems are, and how they are talked about."""
