"""The models that mprm trains: one prompt, one read-out, several backbones."""
