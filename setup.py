"""Builds the compiled scanner; where there is no compiler, mprm installs and runs without it."""

import sys

from setuptools import Extension, setup

flags = [] if sys.platform == "win32" else ["-O3"]
setup(
    ext_modules=[
        Extension(
            "mprm.scores._count_rows",
            ["src/mprm/scores/_count_rows.c"],
            extra_compile_args=flags,
            optional=True,
        )
    ]
)
