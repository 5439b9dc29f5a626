"""Out to the Hugging Face hub: cards of models and of subsets, and their upload."""
