"""Builds the compiled modules; everything else about the package stands in pyproject.toml.

They are written in Cython's pure Python mode and marked optional: without a C compiler
the same sources are imported as plain Python, slower and otherwise equal.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILED = ["tidelog.records.kernel", "tidelog.wire.engine"]

extensions = [
    Extension(
        module,
        [os.path.join("src", *module.split(".")) + ".py"],
        optional=True,
        extra_compile_args=["-O3"],
    )
    for module in COMPILED
]

setup(
    ext_modules=cythonize(
        extensions,
        build_dir="build",
        compiler_directives={"language_level": 3},
    )
)
