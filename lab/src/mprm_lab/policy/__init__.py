"""Small Qwen2.5-VL and InternVL models that learn to solve the problems of the world."""
