"""Where completions come from: a model in this process, a server, Ray."""
