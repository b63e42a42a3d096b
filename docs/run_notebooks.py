"""Execute notebooks and keep what they print: `python docs/run_notebooks.py [NAME ...]`.

Each runs in a kernel and a folder of its own. What is written depends on nothing but the cells and
what they print: no times, no versions, no names of machines. A cell that fails stops the command,
and leaves its notebook as it was.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def executed(path: Path) -> nbformat.NotebookNode:
    """Execute a notebook in an empty folder; raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as empty, TemporaryDirectory() as own:
        client = NotebookClient(
            notebook,
            kernel_name=KERNEL["name"],
            timeout=600,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": empty}},
        )
        manager = client.create_kernel_manager()
        manager.transport = "ipc"  # sockets in a folder that is open to nobody else
        manager.connection_file = str(Path(own, "kernel.json"))
        client.execute(env=environment(Path(own)))
    return normalized(notebook)


def environment(folder: Path) -> dict[str, str]:
    """The environment without settings that would change pictures, and without tqdm's advice."""
    own = {"IPYTHONDIR": str(folder), "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONWARNINGS": "ignore:IProgress not found"}
    return {k: v for k, v in os.environ.items() if k != "MPLBACKEND"} | own


def normalized(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop the metadata of whoever edited or ran a notebook, and number its cells."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    for number, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata = f"cell-{number}", nbformat.NotebookNode()
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.NotebookNode()
    return notebook


def main(names: list[str]) -> None:
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(
        NOTEBOOKS.glob("*.ipynb")
    ):
        nbformat.write(executed(path), path)
        print(path.relative_to(NOTEBOOKS.parent))


if __name__ == "__main__":
    main(sys.argv[1:])
