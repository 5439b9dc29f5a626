"""Labels, batches, loss, trainer."""
