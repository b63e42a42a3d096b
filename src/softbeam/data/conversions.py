"""From what the origin of a dataset holds to the form that is used here."""

import csv
import hashlib
import io
import re
from collections.abc import Sequence
from functools import lru_cache

from softbeam.data.download import tar_member, zip_member


def as_it_is(content: bytes) -> bytes:
    """The content itself: the origin holds just what is used here."""
    return content


def sentences(text: str) -> list[list[list[str]]]:
    """The columns of sentences with blank lines between; lines that start `#<TAB>` are left out."""
    blocks = re.split(r"\n(?:[ \r]*\n)+", text.replace("\r\n", "\n").strip("\n"))
    lines = [[line for line in block.split("\n") if line[:2] != "#\t"] for block in blocks]
    return [[line.split("\t") for line in block] for block in lines if block]


def tokens_and_tags(content: bytes, *, half: int | None = None) -> bytes:
    """`token<TAB>tag` from `n<TAB>token<TAB>tag...`: all sentences, or the first or second half."""
    found = sentences(content.decode("utf-8"))
    middle = len(found) // 2
    kept = {None: found, 0: found[:middle], 1: found[middle:]}[half]
    if any(len(row) < 3 for sentence in kept for row in sentence):
        raise ValueError("a line has fewer than the three columns n, token and tag")
    blocks = ["".join(f"{row[1]}\t{row[2]}\n" for row in sentence) for sentence in kept]
    return "".join(block + "\n" for block in blocks).encode("utf-8")


def supertags(auto: bytes) -> bytes:
    """`word<TAB>UPOS<TAB>category` from the leaves of CCGbank-style AUTO derivations."""
    out: list[str] = []
    for line in auto.decode("utf-8").split("\n"):
        if line.startswith("ID="):
            out.append(f"# sent_id = {line[3:].split(' ')[0]}\n")
        elif line:
            leaves = re.findall(r"\(<L (\S+) (\S+) \S+ (\S+) \S+>\)", line)
            out += [f"{word}\t{upos}\t{category}\n" for category, upos, word in leaves]
            out.append("\n")
    return "".join(out).encode("utf-8")


def ccg(split: str, kind: str, archive: bytes) -> bytes:
    """One split out of the treebank's tar file: its derivations (auto), or their supertags."""
    auto = tar_member(archive, f"en_ewt-ud-{split}.auto")
    return {"auto": as_it_is, "supertags": supertags}[kind](auto)


def unquoted(archive: bytes) -> bytes:
    """The training text out of the zip of the edition with an article in each row of a CSV file."""
    text = zip_member(archive, "*train*").decode("utf-8")
    limit = csv.field_size_limit(len(text) + 1)  # articles pass the module's usual limit
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    finally:
        csv.field_size_limit(limit)
    if any(len(row) != 1 for row in rows):
        raise ValueError("a row of the CSV file has other than one column")
    return "".join(row[0] for row in rows).encode("utf-8")


def component_of(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """For each (en, de) pair the smallest English sentence of its connected component.

    Two pairs are connected when, lower-cased and without punctuation, they share a sentence.
    """
    mark = re.compile(r"[^\w\s]")
    plain = [[mark.sub("", text.lower()).strip() for text in pair] for pair in pairs]
    above: dict[str, str] = {}  # a forest: every sentence and the one above it
    for en, de in plain:
        ends = []
        for node in (f"en {en}", f"de {de}"):
            above.setdefault(node, node)
            while above[node] != node:
                above[node] = above[above[node]]
                node = above[node]
            ends.append(node)
        above[ends[0]] = ends[1]
    tops = []
    for en, _ in plain:
        node = f"en {en}"
        while above[node] != node:
            node = above[node]
        tops.append(node)
    smallest: dict[str, str] = {}
    for top, (en, _) in zip(tops, pairs, strict=True):
        smallest[top] = min(en, smallest.get(top, en))
    return [smallest[top] for top in tops]


@lru_cache(maxsize=1)  # the three splits are fetched one after the other
def tatoeba_splits(archive: bytes) -> dict[str, bytes]:
    """Each split as `german<TAB>english`: whole components, by the MD5 of the smallest sentence.

    Of a thousand values of the digest 15 are valid, the next 15 test and the others train.
    """
    lines = zip_member(archive, "deu.txt").decode("utf-8").replace("\r\n", "\n").split("\n")
    rows = [line.split("\t") for line in lines if line]
    if any(len(row) < 2 for row in rows):
        raise ValueError("a line has fewer than the two columns English and German")
    pairs = [(row[0], row[1]) for row in rows]
    splits: dict[str, list[str]] = {"valid": [], "test": [], "train": []}
    for (en, de), smallest in zip(pairs, component_of(pairs), strict=True):
        digest = hashlib.md5(smallest.encode("utf-8"), usedforsecurity=False).hexdigest()
        value = int(digest, 16) % 1000
        split = "valid" if value < 15 else "test" if value < 30 else "train"
        splits[split].append(f"{de}\t{en}\n")
    return {split: "".join(kept).encode("utf-8") for split, kept in splits.items()}


def tatoeba(split: str, archive: bytes) -> bytes:
    """One split of the list of pairs in upstream's zip."""
    return tatoeba_splits(archive)[split]
