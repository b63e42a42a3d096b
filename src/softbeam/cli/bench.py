"""The command that measures speed: bench."""

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

from softbeam.cli.parser import as_lists, parser, say_json
from softbeam.errors import UserError, check_range, check_threads


class Option(NamedTuple):
    """A flag: its type, its default value and its help text."""

    type: Any
    default: Any
    help: str


class Bench(NamedTuple):
    """A benchmark: a module of `experiments.bench` whose function `run` takes the options."""

    about: str
    module: str
    options: dict[str, Option]


def rounds(number: int) -> dict[str, Option]:
    return {"repeats": Option(int, number, "rounds; medians are reported")}


THREADS = Option(int, 1, "processor threads")
MEMORY = {"memory": Option(bool, True, "whether peaks of memory are measured, in new processes")}
BENCHES = {
    "train": Bench(
        "Cross-entropy training against a bare loop over torch.nn.LSTM.",
        "train",
        rounds(7) | {"threads": THREADS},
    ),
    "soft-beam": Bench(
        "Soft-beam training against cross-entropy and the plain reference: time and memory.",
        "soft_beam",
        {
            "model": Option(str, "lstm", "lstm or transformer"),
            "vocab": Option(list[int] | None, None, "sizes of the vocabulary, as 10,1284"),
            "k": Option(list[int], [1, 3, 5], "beam sizes, as 1,3"),
            "alpha": Option(float, 4.0, "alpha of the relaxation"),
            "candidates": Option(int, 64, "candidates of the pooled form"),
            "normalize": Option(bool, False, "whether local scores are normalized"),
        }
        | rounds(7)
        | MEMORY,
    ),
    "decode": Bench(
        "Beam search against `generate` on the same Marian weights; CTranslate2 as a yardstick.",
        "decode",
        {
            "vocab": Option(int, 8000, "size of the vocabulary"),
            "width": Option(int, 256, "width of the model"),
            "layers": Option(int, 3, "layers of encoder and decoder"),
            "k": Option(int, 5, "beam size"),
            "steps": Option(int, 32, "largest length of outputs"),
        }
        | rounds(5),
    ),
    "growth": Bench(
        "How times grow with sizes: exponents, beside what arithmetic allows.",
        "growth",
        rounds(5),
    ),
    "exact": Bench(
        "Pseudolikelihood and log Z of an LSTM random field: time and memory.", "exact", rounds(7)
    ),
    "sampler": Bench(
        "The fast sampler of masked LMs against plain ones: proposals/s, rows, ESS/s, memory.",
        "sampler",
        {
            "models": Option(
                list[str],
                ["multi30k", "rxnmapper"],
                "multi30k, trained once in about four minutes, bert-mini (random weights), or "
                "names of pretrained models",
            ),
            "vocab": Option(int, 30_522, "words of a BERT with random weights"),
            "block": Option(int, 1, "positions that are proposed together"),
            "chains": Option(int, 8, "number of chains"),
            "time": Option(int, 16, "words of a caption"),
            "steps": Option(int, 16, "proposals of a chain in a round"),
            "burn_in": Option(int, 30, "sweeps before anything is measured"),
            "long": Option(int, 100, "sweeps of the run whose ESS is computed"),
        }
        | rounds(3)
        | MEMORY,
    ),
    "score": Bench(
        "Pseudo-log-likelihoods against the minicons package (softbeam[bench]): time, memory.",
        "score",
        {
            "models": Option(
                list[str],
                ["bert-mini", "sapiens-vh"],
                "bert-tiny, bert-mini, bert-small, bert-12-256 (random weights), or names of "
                "pretrained models",
            ),
            "texts": Option(int, 8, "number of texts"),
            "tokens": Option(int, 20, "tokens of each text"),
            "long": Option(int, 200, "tokens of the text whose memory is measured"),
        }
        | rounds(5)
        | MEMORY,
    ),
    "mutants": Bench(
        "All single substitutions of a heavy chain against the minicons package (softbeam[bench]).",
        "mutants",
        {
            "models": Option(list[str], ["sapiens-vh"], "names of pretrained models of antibodies"),
            "part": Option(int, 2, "variants that are timed where all would take too long"),
        }
        | rounds(5),
    ),
    "hollow": Bench(
        "A hollow masked LM against a plain one, both your own: quality, agreement, ESS/s.",
        "hollow",
        {
            "plain": Option(str, "runs/plain", "folder of train masked-lm --form plain"),
            "hollow": Option(str, "runs/hollow", "folder of train masked-lm --form hollow"),
            "texts": Option(str, "dev.txt", "file of texts that neither was trained on"),
            "time": Option(int, 128, "tokens of the texts that are taken from it"),
            "chains": Option(int, 2, "texts that chains start from"),
            "steps": Option(int, 2560, "proposals of a chain"),
            "scored": Option(int, 50, "texts whose tokens are scored"),
            "temperature": Option(float, 1.0, "of the target and of the proposals"),
        },
    ),
}


BERT = "sampler --models bert-mini --burn-in 10 --long 20 --steps 8"
ALL = (  # what `bench all` runs, in this order
    "train",
    "soft-beam --k 1,3",
    "soft-beam --k 1,3 --normalize true --memory false",
    "soft-beam --model transformer --k 1,3",
    "soft-beam --model transformer --k 1,3 --normalize true --memory false",
    "decode",
    "growth",
    "exact",
    BERT,
    f"{BERT} --vocab 8000 --memory false",
    f"{BERT} --block 4 --memory false",
    f"{BERT} --vocab 8000 --block 4 --memory false",
    "sampler --models sapiens-vh --chains 4 --steps 2 --burn-in 0 --long 1 --memory false",
    "score --models bert-mini,bert-12-256,sapiens-vh",
    "mutants",
)


def bench(words: list[str]) -> int:
    """Run `softbeam bench`."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: softbeam bench WHAT [--json] (WHAT --help lists the options)\n")
        print("\n".join(f"  {name:12} {bench.about}" for name, bench in BENCHES.items()))
        print(f"  {'all':12} Every benchmark, one after another.")
        return 0
    name = words[0]
    if name != "all" and name not in BENCHES:
        raise UserError(f"no benchmark {name!r}; there are {', '.join(BENCHES)}, all")
    return bench_all(words[1:]) if name == "all" else bench_one(words)


def bench_one(words: list[str]) -> int:
    """Run one benchmark."""
    name, *flags = words
    about, module, options = BENCHES[name]
    command = parser(f"bench {name}", about)
    for option, (kind, default, text) in ({"threads": THREADS} | options).items():
        command.add_argument(f"--{option.replace('_', '-')}", type=kind, default=default, help=text)
    add_outputs(command)
    lists = tuple(f"--{option}" for option, (kind, *_) in options.items() if "list" in str(kind))
    parsed = command.parse_args(as_lists(flags, lists))
    check_threads(parsed.threads)
    for option in options:
        check(option, parsed[option])
    import torch

    from softbeam.experiments.bench.records import recorded, verdict, write_record

    torch.set_num_threads(parsed.threads)
    run = import_module(f"softbeam.experiments.bench.{module}").run
    knobs = {option: parsed[option] for option in options}
    record = recorded(
        without_outputs(words), lambda: run(**knobs, progress=partial(print, flush=True))
    )
    print(verdict(record))
    if parsed.record:
        print(write_record(record, Path(parsed.record)))
    if parsed.json:
        say_json(record["found"] | {key: record[key] for key in ("load", "other_work", "quiet")})
    return 0


def bench_all(flags: list[str]) -> int:
    """Run every benchmark in a process of its own, as their memory and threads are."""
    command = parser("bench all", "Every benchmark, one after another.")
    add_outputs(command)
    parsed = command.parse_args(flags)
    record, results = ["--record", parsed.record] if parsed.record else [], {}
    for words in ALL:
        print(f"softbeam bench {words}", flush=True)
        lines = []
        with Popen(
            [sys.executable, "-m", "softbeam", "bench", *words.split(), *record, "--json"],
            stdout=PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if not line.startswith("{"):
                    print(f"  {line}", end="", flush=True)
        if process.returncode:
            raise UserError(f"softbeam bench {words} ended with {process.returncode}")
        results[words] = json.loads(lines[-1])
    busy = [words for words, figures in results.items() if not figures["quiet"]]
    print(f"not quiet: {'; '.join(busy)}" if busy else "quiet throughout")
    if parsed.json:
        say_json(results)
    return 0


def add_outputs(command: Any) -> None:
    """Add the flags that say what becomes of the figures."""
    command.add_argument("--record", default=None, help="folder for a JSON file of the figures")
    command.add_argument("--json", action="store_true", help="print a last line of JSON")


def without_outputs(words: list[str]) -> list[str]:
    """The words without `--json` and `--record DIR`."""
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if "--record" not in (before, word) and word != "--json"]


def check(option: str, value: Any) -> None:
    """Raises UserError if a number, or a number in a list, is too small."""
    name = f"--{option.replace('_', '-')}"
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float):
            check_range(name, number, above=0)
        elif isinstance(number, int) and not isinstance(number, bool):
            check_range(name, number, least=0 if option == "burn_in" else 1)
