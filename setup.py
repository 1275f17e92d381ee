"""Builds the compiled modules; everything else about the package stands in pyproject.toml.

They are marked optional: without a C compiler the same sources are imported as plain Python,
slower and otherwise equal.
"""

import os
import tomllib

from Cython.Build import cythonize
from setuptools import Extension, setup

# -O2 takes a fifth less time to compile, and the codecs run 5 to 20 per cent slower: measured, and not worth it.
# Debug symbols, which Python's own flags ask for, take a quarter of the compile time and most of the size.
FLAGS = ["-O3", "-g0"]


def source(module: str) -> str:
    return os.path.join("src", *module.split(".")) + ".py"


with open("pyproject.toml", "rb") as file:
    compiled = tomllib.load(file)["tool"]["tidelog"]["compiled"]

# The largest come first, so that no core is left with a large one alone at the end.
compiled.sort(key=lambda module: os.path.getsize(source(module)), reverse=True)
extensions = [Extension(module, [source(module)], optional=True, extra_compile_args=FLAGS) for module in compiled]

# Cython takes 3 s for all modules, and more processes would save little of it. The C compiler takes the rest.
setup(
    ext_modules=cythonize(extensions, build_dir="build", compiler_directives={"language_level": 3}),
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
