"""One page that shows a corpus, what a selection keeps of it, and what came of training on it."""
