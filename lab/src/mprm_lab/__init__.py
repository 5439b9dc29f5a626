"""The proving ground of mprm: a small visual world, and the paper's experiments on it."""
