"""A data directory whose corpora are short, for tests that train or tabulate whole experiments."""

import gzip
from pathlib import Path

SENTENCES = 60  # of each file
EXPERIMENTS = ("ccg_ud_english_ewt", "cmudict_0.7b", "multi30k", "tatoeba_de_en", "wikineural_de")


def write_short_corpora(data_dir: Path, folder: Path) -> Path:
    """Write the directory; corpora that no experiment reads are links to the whole ones."""
    for corpus in data_dir.iterdir():
        if corpus.name not in EXPERIMENTS:
            (folder / corpus.name).symlink_to(corpus)
            continue
        for file in corpus.rglob("*.gz"):
            target = folder / file.relative_to(data_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = gzip.decompress(file.read_bytes())
            target.write_bytes(gzip.compress(_part(file.name, content), compresslevel=1))
    return folder


def _part(name: str, content: bytes) -> bytes:
    """Every twentieth word of the dictionary, or the first sentences of a corpus."""
    if "cmudict" in name:
        return b"".join(content.splitlines(keepends=True)[::20])
    if name.endswith((".conll.gz", ".supertags.gz")):
        return b"\n\n".join(content.split(b"\n\n")[:SENTENCES]) + b"\n"
    lines = 2 * SENTENCES if name.endswith(".auto.gz") else SENTENCES
    return b"".join(content.splitlines(keepends=True)[:lines])
