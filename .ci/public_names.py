"""Get every public name of the installed package; run outside the tree, where nothing hides it."""

import importlib
import pkgutil
import sys
from pathlib import Path

import softbeam

ROOT = Path(softbeam.__file__).parent
assert Path(sys.prefix) in ROOT.parents, f"{ROOT} is not in {sys.prefix}"
assert (ROOT / "py.typed").is_file()

names = 0
packages = [p.name for p in pkgutil.iter_modules(softbeam.__path__, "softbeam.") if p.ispkg]
for package in map(importlib.import_module, ["softbeam", *packages]):
    for name in dir(package):
        getattr(package, name)
        names += 1
print(f"{names} names of {len(packages) + 1} packages")
