"""Reading final answers out of text and comparing them."""
