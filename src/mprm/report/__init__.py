"""One HTML page on a corpus, its selection and its runs."""
