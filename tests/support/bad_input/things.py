"""A folder of small good things, of which the cases of bad input break one each."""

import json
from contextlib import chdir
from pathlib import Path

import pytest

from softbeam.cli import main
from softbeam.reports.charts import figure_of, image
from support.fairseq_checkpoint import write_checkpoint
from support.report_folders import write_table_record
from support.small_data import write_conll
from support.tiny_bert import write_letter_mlm

GERMAN = ["der Hund bellt", "die Katze schläft", "der Vogel singt laut", "ein Hund schläft"]
ENGLISH = ["the dog barks", "the cat sleeps", "the bird sings loudly", "a dog sleeps"]
SHORT = "--pretrain.epochs 1 --pretrain.warmup 0 --quiet --threads 1".split()
WHOLE = "--data.subwords 0 --data.min_count 1".split()
PAIRS = "--data.source de.txt --data.target en.txt".split()
PAIRS += "--data.dev_source de.txt --data.dev_target en.txt".split()
TAGS = "train tagging --data.train train.conll --data.dev dev.conll --model.hidden 8".split()
SAMPLE = "sample --mlm mlm --text A[MASK]C --chains 2 --sweeps 4 --burn-in 1 --quiet".split()
WORDS = "abacus bet cab dab ebb fad gab had ibis jab kit lab mad nab oat pad".split()
PHONES = "B AE1 T".split()


def make_good(folder: Path) -> Path:
    """Data files, runs, a run and samples that were stopped, a masked LM, a fairseq checkpoint."""
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        write_conll(Path("train.conll"), 4)
        write_conll(Path("dev.conll"), 1)
        Path("in.txt").write_text("the cat runs\na dog sleeps\n")
        for name, lines in (("de.txt", GERMAN), ("en.txt", ENGLISH)):
            Path(name).write_text("".join(f"{line}\n" for line in lines * 3), encoding="utf-8")
        Path("cmu.dict").write_text("".join(f"{w} {' '.join(PHONES)}\n" for w in WORDS))
        succeed(*TAGS, *SHORT, "--out", "run")
        small = "--model.width 8 --model.layers 1 --model.heads 2 --model.longest 24".split()
        succeed("train", "transformer-translation", *PAIRS, *WHOLE, *small, *SHORT, "--out", "mt")
        succeed("train", "masked-translation", *PAIRS, *WHOLE, *small, *SHORT, "--out", "cm")
        pieces = "--data.subwords 60 --model.hidden 8 --model.embedding 8".split()
        succeed("train", "translation", *PAIRS, *pieces, *SHORT, "--out", "bpe")
        write_letter_mlm(Path("mlm"))
        succeed(*SAMPLE, "--out", "done.jsonl")
        make_tables(Path("tables"))
        Path("fairseq").mkdir()
        write_checkpoint(Path("fairseq"))
        for side in ("de", "en"):
            Path(f"fairseq/dict.{side}.txt").rename(f"fairseq/{side}.txt")
        for place in ("softbeam.training.loop.finish", "softbeam.sampling.texts.summary.finish"):
            patch.setattr(place, interrupt)
        assert main([*TAGS, *SHORT, "--out", "stopped"]) == 130
        assert main([*SAMPLE, "--checkpoint-every", "0", "--out", "stopped.jsonl"]) == 130
    return folder


def make_tables(folder: Path) -> None:
    """What `reproduce` leaves: a table with a claim, and a figure."""
    folder.mkdir()
    write_table_record(folder / "table-5.3.json")
    made = {
        "target": "figure-6.2",
        "text": "x",
        "claims": [],
        "files": ["elsewhere/figure-6.2.svg"],
    }
    (folder / "figure-6.2.json").write_text(json.dumps(made))
    chart, (axes,) = figure_of(1, 6.4, 3.2)
    axes.plot([1, 2], [3.0, 4.0], label="a")
    (folder / "figure-6.2.svg").write_bytes(image(chart, "svg"))


def succeed(*words: str) -> None:
    assert main(list(words)) == 0, words


def interrupt(*args, **options) -> None:
    raise KeyboardInterrupt
