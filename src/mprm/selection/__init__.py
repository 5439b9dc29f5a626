"""From label counts to a subset: rank within a source, keep the top, write it out."""
