"""``python -m mprm_lab``."""

from mprm_lab.cli import main

if __name__ == "__main__":
    main()
