"""Wheels and unit tests on every Python that tidelog supports and that is found here.

The Pythons are those of the classifiers in pyproject.toml. They are looked for on the PATH (python3.12) and with pyenv;
one that is not here is skipped, and a line says so. The Python that runs this counts as found. The others get
environments in .cache/pythons, with the packages of requirements.lock.
"""

import argparse
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
ENVIRONMENTS = ROOT / ".cache" / "pythons"
WHEELS = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
BUILD = {"setuptools", "cython"}
BORROWED = "pyspark"
"""Plain Python of 490 MB that has no wheel: the other Pythons read it where it is installed for this one."""
SEEDS = range(4)
_DIGESTS = """
from tidelog.lab.search import run
from tidelog.lab.sweep import silence
silence()
for seed in range({}, {}):
    print(seed, run(seed).digest)
"""


def supported() -> list[str]:
    return [
        found[1] for line in PROJECT["project"]["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))
    ]


def find(version: str) -> str | None:
    """A python of this version. What the PATH has may be pyenv's, which runs only if pyenv was told of that version."""
    if version == OWN:
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = shutil.which(f"python{version}")
    candidates = [named] if named else []
    candidates += [str(found) for found in sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)]
    for python in candidates:
        told = subprocess.run(
            [python, "-c", "import venv, ensurepip, sys; print(*sys.version_info[:2], sep='.')"],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode == 0 and told.stdout.strip() == version:
            return python
    return None


def locked(only: set[str] | None = None) -> str:
    """The lock's text, of these packages only, or of all but the one that is borrowed."""
    entries = re.split(r"\n(?=[a-z])", LOCK.read_text())
    names = [re.match(r"[a-z0-9-]*", entry)[0] for entry in entries]
    wanted = [name in only if only else name != BORROWED for name in names]
    return "\n".join(entry for entry, take in zip(entries, wanted, strict=True) if take)


def constraints() -> str:
    """The versions of the lock without its hashes: a wheel that was just built has none there."""
    return "".join(line.rstrip(" \\") + "\n" for line in LOCK.read_text().splitlines() if re.match("[a-z]", line))


def environment(version: str, python: str) -> Path:
    """An environment that can build the wheel. The one of `make setup` serves for its own Python."""
    if version == OWN:
        return Path(sys.executable)
    directory = ENVIRONMENTS / version
    inside = directory / "bin" / "python"
    if not inside.exists():
        subprocess.run([python, "-m", "venv", "--clear", directory], check=True)
    install(inside, "build", locked(BUILD))
    return inside


def install(python: Path, name: str, requirements: str) -> None:
    """These locked packages, unless it has them from the last time."""
    stamp = python.parent.parent / f".{name}"
    digest = hashlib.sha256(requirements.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    file = python.parent.parent / f"{name}.txt"
    file.write_text(requirements)
    pip(python, "install", "--require-hashes", "--no-deps", "--requirement", str(file))
    stamp.write_text(digest)


def pip(python: Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "--quiet", *words], cwd=ROOT, check=True)


def build(version: str, python: Path) -> Path:
    """Its wheel in dist. It has to be compiled where there is a C compiler, though the build goes on without."""
    tag = f"cp{version.replace('.', '')}"
    for old in WHEELS.glob(f"*-{tag}-*.whl"):
        old.unlink()
    for left in (ROOT / "build").glob(f"*{version.replace('.', '')}"):
        shutil.rmtree(left)  # files that are no longer in the source
    pip(python, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(WHEELS), ".")
    [wheel] = [*WHEELS.glob(f"*-{tag}-{tag}-*.whl")]
    names = zipfile.ZipFile(wheel).namelist()
    compiled = PROJECT["tool"]["tidelog"]["compiled"]
    missing = [name for name in compiled if not any(n.startswith(name.replace(".", "/") + ".cpython") for n in names)]
    if missing and any(map(shutil.which, ("cc", "gcc", "clang"))):
        sys.exit(f"a C compiler is here, yet {wheel.name} has these as plain Python only: {', '.join(missing)}")
    print(f"Python {version}: {wheel.relative_to(ROOT)}", flush=True)
    return wheel


def prepare(python: Path, wheel: Path) -> None:
    """Into the environment of another Python: what the tests need, and tidelog from its wheel."""
    install(python, "tests", locked())
    pip(python, "install", "--no-deps", "--force-reinstall", str(wheel))
    where = importlib.util.find_spec(BORROWED)
    if where is not None and where.origin is not None:
        [packages] = (python.parent.parent / "lib").glob("python*/site-packages")
        borrowed = packages / BORROWED
        if not borrowed.exists():
            borrowed.unlink(missing_ok=True)
            borrowed.symlink_to(Path(where.origin).parent)
    run(python, "tools/check_compiled.py")


def run(python: Path, *words: str, **settings: str) -> None:
    subprocess.run([python, *words], cwd=ROOT, env=os.environ | settings, check=True)


@functools.cache
def digests(python: Path) -> str:
    code = _DIGESTS.format(SEEDS.start, SEEDS.stop)
    return subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test(version: str, python: Path, wheel: Path, paths: list[str]) -> None:
    """The wheel in a clean environment; on another Python the unit tests too, and that seeds are the same runs."""
    if version != OWN:
        prepare(python, wheel)
        found, expected = digests(python), digests(Path(sys.executable))
        if found != expected:
            sys.exit(f"Python {version} simulates other runs than {OWN}:\n{found}instead of\n{expected}")
        print(
            f"Python {version}: the simulator's seeds {SEEDS.start} to {SEEDS.stop - 1} are the runs of {OWN}",
            flush=True,
        )
        words = ["-m", "not jvm and not long", "--numprocesses", "2", "--dist", "worksteal", *paths]
        run(python, "-m", "pytest", *words)
    run(python, "-m", "pytest", "tests/system/test_wheel.py", TIDELOG_WHEEL=str(wheel))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["wheel", "test"], help="build the wheels; or build and test them")
    parser.add_argument(
        "paths", nargs="*", default=["tests/unit", "tests/property"], help="which tests, on other Pythons"
    )
    given = parser.parse_args()
    for version in supported():
        python = find(version)
        if python is None:
            print(f"Python {version}: not found on the PATH nor with pyenv, skipped", flush=True)
            continue
        inside = environment(version, python)
        wheel = build(version, inside)
        if given.what == "test":
            test(version, inside, wheel, given.paths)


if __name__ == "__main__":
    main()
