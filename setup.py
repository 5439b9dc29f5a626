"""Builds the compiled readers; where there is no compiler, mprm installs and runs without them."""

import sys

from setuptools import Extension, setup

flags = [] if sys.platform == "win32" else ["-O3"]


def extension(name: str) -> Extension:
    """The compiled module that stands beside its Python twin."""
    return Extension(
        f"mprm.{name.replace('/', '.')}",
        [f"src/mprm/{name}.c"],
        depends=["src/mprm/data/_json_cursor.h"],
        extra_compile_args=flags,
        optional=True,
    )


setup(ext_modules=[extension("selection/_scan"), extension("data/_mm_prm")])
