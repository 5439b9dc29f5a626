"""The Beta-Binomial model fitted to a corpus."""
