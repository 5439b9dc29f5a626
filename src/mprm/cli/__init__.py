"""The ``mprm`` command."""
