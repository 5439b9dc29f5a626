"""Questions, answers, samplers."""
