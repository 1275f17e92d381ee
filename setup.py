"""Builds the compiled modules; everything else about the package stands in pyproject.toml.

They are marked optional: without a C compiler the same sources are imported as plain Python,
slower and otherwise equal.
"""

import os
import tomllib

from Cython.Build import cythonize
from setuptools import Extension, setup

with open("pyproject.toml", "rb") as file:
    compiled = tomllib.load(file)["tool"]["tidelog"]["compiled"]

extensions = [
    Extension(module, [os.path.join("src", *module.split(".")) + ".py"], optional=True, extra_compile_args=["-O3"])
    for module in compiled
]

setup(ext_modules=cythonize(extensions, build_dir="build", compiler_directives={"language_level": 3}))
