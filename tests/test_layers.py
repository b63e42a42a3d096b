"""Imports point downwards: algorithms and models never meet below a recipe."""

import ast
from pathlib import Path

import softbeam

LAYERS = [
    ["errors", "types"],
    ["files", "ops", "decoders", "fused", "beams", "schedules", "costs", "progress", "masking"]
    + ["diagnostics", "signals", "svg", "ranks", "finite", "points"],
    ["fast_beam", "checkpoint", "sampling_config", "cells", "claims", "tables"],
    ["data", "models", "search", "relax", "exact", "feedback", "metrics", "energy", "proposals"]
    + ["mask_predict", "queues"],
    ["ais", "compatibility", "pretrained", "features", "strided", "scoring", "grid"]
    + ["launching"],
    ["objectives", "beam_training", "energy_training", "kernels", "chains"],
    ["baselines", "testing", "masked_objectives", "fast_sampling", "mlm_training"],
    ["energy_objectives", "certify", "sampling", "hf"],
    ["config", "sample_files", "infilling"],
    ["evaluate", "sample_report", "optimizers"],
    ["runs", "recovery"],
    ["train", "inference", "published_cmlm", "energy_experiments", "sampling_experiments"],
    ["trainings"],
    ["recipes", "bench", "figures", "analysis", "charts", "energy_tables", "beam_pictures"]
    + ["chain_pictures", "sampling_claims", "training_tables"],
    ["report", "masked_models"],
    ["sampling_tables", "training_runs"],
    ["training_experiments"],
    ["training_results", "energy_results", "sampling_results"],
    ["demo", "compare", "sweep", "reproduce"],
    ["cli"],
    ["__main__"],
]
RANK = {module: rank for rank, modules in enumerate(LAYERS) for module in modules}
ROOT = Path(softbeam.__file__).parent


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports anywhere, by their first name below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "softbeam":
            below = (node.module or "").split(".")[1:]
            found |= {below[0]} if below else {name.name for name in node.names}
        elif isinstance(node, ast.Import):
            parts = [name.name.split(".") for name in node.names]
            found |= {p[1] for p in parts if p[0] == "softbeam" and len(p) > 1}
    return found - {"__version__"}


def test_every_module_imports_only_from_lower_layers():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").parts[0]
        if module == "__init__":
            continue
        assert module in RANK, f"{module} has no layer"
        for used in imports(path) - {module}:
            if RANK[used] >= RANK[module]:
                wrong.append(f"{path.relative_to(ROOT)} imports {used}")
    assert not wrong, wrong


def test_the_check_sees_a_wrong_import(tmp_path):
    bad = tmp_path / "ops.py"
    bad.write_text(
        "def f():\n    from softbeam.models import lstm\n    from softbeam import search\n"
    )
    assert imports(bad) == {"models", "search"}
    assert all(RANK[used] >= RANK["ops"] for used in imports(bad))
