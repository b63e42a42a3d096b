"""Show the notebooks as Markdown: their text, their cells, and what these print and draw."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ORDER = ("train_through_a_beam", "sample_an_antibody", "is_my_sampler_right")


def page(notebooks: Path, pictures: Path) -> str:
    """Return all notebooks as sections of one page; writes their pictures to a folder."""
    return "\n".join(
        part for name in ORDER for part in section(notebooks / f"{name}.ipynb", pictures)
    )


def section(path: Path, pictures: Path) -> Iterator[str]:
    """Yield a notebook's cells as Markdown, a level of headings below that of the notebook."""
    drawn = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield linked(re.sub(r"^#", "##", text, flags=re.MULTILINE)) + "\n"
            continue
        yield fenced("python", text)
        for output in cell["outputs"]:
            if "text" in output:
                yield fenced("text", "".join(output["text"]))
            else:
                drawn += 1
                picture = pictures / f"{path.stem}-{drawn}.png"
                picture.write_bytes(png(output))
                yield f"![What the cell above draws](/_build/generated/{picture.name})\n"


def png(output: dict[str, Any]) -> bytes:
    """Decode the picture of an output."""
    return base64.b64decode("".join(output["data"]["image/png"]))


def linked(text: str) -> str:
    """Make links to the repository's pages and to other notebooks links of this site."""
    text = re.sub(r"\]\(\.\./docs/", "](/", text)
    return re.sub(r"\]\((\w+)\.ipynb\)", lambda found: f"](#{found[1].replace('_', '-')})", text)


def fenced(kind: str, text: str) -> str:
    return f"```{kind}\n{text.rstrip()}\n```\n"
