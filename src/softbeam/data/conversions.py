"""Convert the original files of datasets to the files that softbeam reads.

`corpora.toml` names these functions and their keyword arguments. Each takes the bytes of the
original, and raises ValueError if they have another form than expected.
"""

import csv
import gzip
import hashlib
import io
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.data.download import tar_member, zip_member

if TYPE_CHECKING:
    from scipy import sparse
    from scipy.sparse import csgraph
else:
    sparse, csgraph = lazy("scipy.sparse"), lazy("scipy.sparse.csgraph")


def as_it_is(content: bytes) -> bytes:
    """Return the content unchanged."""
    return content


def gunzip(content: bytes) -> bytes:
    """Decompress a gzip file."""
    return gzip.decompress(content)


def sentences(text: str) -> list[list[list[str]]]:
    """Split a text at blank lines into sentences of lines of columns, without `#<TAB>` lines."""
    blocks = re.split(r"\n(?:[ \r]*\n)+", text.replace("\r\n", "\n").strip("\n"))
    lines = [[line for line in block.split("\n") if line[:2] != "#\t"] for block in blocks]
    return [[line.split("\t") for line in block] for block in lines if block]


def tokens_and_tags(content: bytes, *, half: int | None = None) -> bytes:
    """Convert lines `n<TAB>token<TAB>tag...` to `token<TAB>tag`.

    All sentences are kept, or the first half (0) or the second (1).
    """
    everything = sentences(content.decode("utf-8"))
    middle = len(everything) // 2
    kept = {None: everything, 0: everything[:middle], 1: everything[middle:]}[half]
    if any(len(row) < 3 for sentence in kept for row in sentence):
        raise ValueError("a line has fewer than the three columns n, token and tag")
    blocks = ["".join(f"{row[1]}\t{row[2]}\n" for row in sentence) for sentence in kept]
    return "".join(block + "\n" for block in blocks).encode("utf-8")


def supertags(auto: bytes) -> bytes:
    """Convert the leaves of CCGbank-style AUTO derivations to `word<TAB>UPOS<TAB>category`."""
    out: list[str] = []
    for line in auto.decode("utf-8").split("\n"):
        if line.startswith("ID="):
            out.append(f"# sent_id = {line[3:].split(' ')[0]}\n")
        elif line:
            leaves = re.findall(r"\(<L (\S+) (\S+) \S+ (\S+) \S+>\)", line)
            out += [f"{word}\t{upos}\t{category}\n" for category, upos, word in leaves]
            out.append("\n")
    return "".join(out).encode("utf-8")


def ccg(archive: bytes, *, split: str, kind: str) -> bytes:
    """Extract a split from the treebank's tar file: its derivations (auto) or supertags."""
    auto = tar_member(archive, f"en_ewt-ud-{split}.auto")
    return {"auto": as_it_is, "supertags": supertags}[kind](auto)


def unquoted(archive: bytes) -> bytes:
    """Extract the training text from a zip file that holds a CSV file with an article per row."""
    text = zip_member(archive, "*train*").decode("utf-8")
    limit = csv.field_size_limit(len(text) + 1)  # articles pass the module's usual limit
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    finally:
        csv.field_size_limit(limit)
    if any(len(row) != 1 for row in rows):
        raise ValueError("a row of the CSV file does not have exactly one column")
    return "".join(row[0] for row in rows).encode("utf-8")


def component_of(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """For each (en, de) pair, return the smallest English sentence of its connected component.

    Two pairs are connected if they share a sentence, ignoring case and punctuation.
    """
    mark = re.compile(r"[^\w\s]")
    numbers: dict[tuple[int, str], int] = {}  # of each sentence, by its language
    edges = [
        [
            numbers.setdefault((language, mark.sub("", text.lower()).strip()), len(numbers))
            for language, text in enumerate(pair)
        ]
        for pair in pairs
    ]
    english, german = zip(*edges, strict=True)
    size = (len(numbers), len(numbers))
    graph = sparse.coo_array(([True] * len(pairs), (english, german)), shape=size)
    _, labels = csgraph.connected_components(graph, directed=False)
    components = [labels[number] for number in english]
    smallest: dict[int, str] = {}
    for component, (sentence, _) in zip(components, pairs, strict=True):
        smallest[component] = min(sentence, smallest.get(component, sentence))
    return [smallest[component] for component in components]


@lru_cache(maxsize=1)  # the three splits are fetched one after the other
def tatoeba_splits(archive: bytes) -> dict[str, bytes]:
    """Split the sentence pairs, as `german<TAB>english`, into valid, test and train.

    A connected component stays together. The MD5 of its smallest English sentence, modulo 1000,
    decides: 0 to 14 is valid, 15 to 29 test, and the others are train.
    """
    lines = zip_member(archive, "deu.txt").decode("utf-8").replace("\r\n", "\n").split("\n")
    rows = [line.split("\t") for line in lines if line]
    if min(map(len, rows), default=0) < 2:
        raise ValueError("expected lines with the two columns English and German")
    pairs = [(row[0], row[1]) for row in rows]
    splits: dict[str, list[str]] = {"valid": [], "test": [], "train": []}
    for (en, de), smallest in zip(pairs, component_of(pairs), strict=True):
        digest = hashlib.md5(smallest.encode("utf-8"), usedforsecurity=False).hexdigest()
        value = int(digest, 16) % 1000
        split = "valid" if value < 15 else "test" if value < 30 else "train"
        splits[split].append(f"{de}\t{en}\n")
    return {split: "".join(kept).encode("utf-8") for split, kept in splits.items()}


def tatoeba(archive: bytes, *, split: str) -> bytes:
    """Return one split of the sentence pairs in the original zip file."""
    return tatoeba_splits(archive)[split]
