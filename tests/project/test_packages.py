"""The rule of imports: each package may use those named beside it; inside a package, no cycles."""

import ast
from functools import cache
from pathlib import Path

import softbeam

ROOT = Path(softbeam.__file__).parent
ALGORITHMS = {"search", "sampling"}
BELOW_TRAINING = {"runtime", "data", "models", "objectives"} | ALGORITHMS
RULE = {  # every package may also import the root: types, errors, tensors, schedules, exact
    "runtime": set(),
    "search": set(),
    "sampling": {"runtime"},
    "data": {"runtime"},
    "models": {"runtime", "data"},
    "objectives": ALGORITHMS,
    "training": BELOW_TRAINING,
    "reports": BELOW_TRAINING | {"training"},
    "experiments": BELOW_TRAINING | {"training", "reports"},
    "cli": BELOW_TRAINING | {"training", "reports", "experiments"},
}


def modules() -> dict[str, Path]:
    """The modules of the project by their names below the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__") or "__init__"] = path
    return found


def imports(text: str, known: set[str]) -> set[str]:
    """The modules of ours that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "softbeam":
            base = (node.module or "").partition(".")[2]
            for name in node.names:
                full = f"{base}.{name.name}".strip(".")
                found.add(full if full in known else base or "__init__")
        elif isinstance(node, ast.Import):
            found |= {n.name[9:] for n in node.names if n.name.startswith("softbeam.")}
    return found


def broken(edges: dict[str, set[str]]) -> list[str]:
    """The imports that the rule forbids."""
    found = []
    for module, used in edges.items():
        package = module.split(".")[0]
        if package in ("__init__", "__main__"):
            continue
        for other in sorted(used):
            home, inside = other.split(".")[0], "." in other or other in RULE
            allowed = RULE.get(package, set()) | {package}
            if package == "sampling" and home == "runtime":
                allowed = allowed if module.startswith("sampling.texts") else {package}
            if inside and home not in allowed:
                found.append(f"{module} imports {other}")
    return found


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Some modules that import each other in a circle, or nothing."""
    left = dict(edges)
    while True:
        free = [m for m, used in left.items() if not (used & left.keys()) - {m}]
        if not free:
            return sorted(left)
        for module in free:
            del left[module]


@cache
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(path.read_text(), {*known}) - {name} for name, path in known.items()}


def test_every_package_has_a_rule():
    assert {m.split(".")[0] for m in modules() if "." in m} == RULE.keys()


def test_packages_import_what_the_rule_allows():
    assert broken(graph()) == []


def test_no_modules_import_each_other_in_a_circle():
    assert cycle(graph()) == []


def test_the_root_is_small():
    assert len([m for m in modules() if "." not in m and m not in RULE]) <= 8


def test_the_checks_see_wrong_imports():
    known = {"search.hard", "models", "models.lstm", "data", "tensors"}
    text = "def f():\n    from softbeam.models import lstm\n    from softbeam import tensors\n"
    edges = {"search.hard": imports(text, known)}
    assert edges == {"search.hard": {"models.lstm", "tensors"}}
    assert broken(edges) == ["search.hard imports models.lstm"]
    assert broken({"sampling.chains": {"runtime.files"}, "sampling.texts.files": {"runtime.files"}})
    assert cycle({"a": {"b"}, "b": {"a"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]
