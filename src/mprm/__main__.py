"""``python -m mprm``: the same as the ``mprm`` command, for launchers that start modules."""

from mprm.cli.main import main

if __name__ == "__main__":
    main()
