"""The paper's experiments on the lab."""
