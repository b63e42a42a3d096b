"""Commands that measure speed: bench."""

from typing import Any

from softbeam.cli.parser import Parser, as_lists, parser, say_json
from softbeam.errors import UserError, limited


def bench(words: list[str]) -> int:
    """Measure speed: softbeam bench train | soft-beam | exact | sampler | score [--json]"""
    benches = {
        "train": bench_train,
        "soft-beam": bench_soft_beam,
        "exact": bench_exact,
        "sampler": bench_sampler,
        "score": bench_score,
    }
    if not words or words[0] in ("-h", "--help"):
        rows = [f"  {name:12} {run.__doc__}" for name, run in benches.items()]
        print("usage: softbeam bench WHAT [--json] (WHAT --help lists the options)\n")
        print("\n".join(rows))
        return 0
    if words[0] not in benches:
        raise UserError(f"no benchmark {words[0]!r}; there are {', '.join(benches)}")
    return benches[words[0]](words[1:])


COUNTS = ("vocab", "k", "candidates", "chains", "time", "steps", "long", "texts", "tokens")


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def bench_parser(name: str, description: str | None) -> Parser:
    made = parser(f"bench {name}", description or "")
    made.add_argument("--repeats", type=int, default=7, help="rounds; medians are reported")
    made.add_argument("--threads", type=int, default=1, help="processor threads")
    made.add_argument("--json", action="store_true", help="figures as a last line of JSON")
    return made


def parse_bench(made: Parser, words: list[str]) -> Any:
    parsed = made.parse_args(words)
    for name in ("repeats", "threads", *COUNTS):
        for value in as_list(parsed.get(name, 1)):
            limited(f"--{name}", value, least=1)
    limited("--alpha", parsed.get("alpha"), above=0)
    limited("--burn-in", parsed.get("burn_in"), least=0)
    import torch

    torch.set_num_threads(parsed.threads)
    return parsed


def bench_train(words: list[str]) -> int:
    """Cross-entropy training against a bare loop over torch.nn.LSTM."""
    parsed = parse_bench(bench_parser("train", bench_train.__doc__), words)
    from softbeam.experiments.bench.train import run

    found = run(repeats=parsed.repeats, threads=parsed.threads)
    for row in found["rows"]:
        print(
            f"{row['model']:24} softbeam {row['tokens_per_s']:9,.0f} tokens/s  "
            f"bare {row['bare_tokens_per_s']:9,.0f} tokens/s  ratio {row['ratio']:.2f}"
        )
    if parsed.json:
        say_json(found)
    return 0


def bench_soft_beam(words: list[str]) -> int:
    """Soft-beam training against cross-entropy and the plain reference: time and memory."""
    made = bench_parser("soft-beam", bench_soft_beam.__doc__)
    made.add_argument("--model", type=str, default="lstm", help="lstm or transformer")
    made.add_argument("--vocab", type=list[int] | None, default=None, help="sizes")
    made.add_argument("--k", type=list[int], default=[1, 3, 5], help="beam sizes")
    made.add_argument("--alpha", type=float, default=4.0, help="of the relaxation")
    made.add_argument("--candidates", type=int, default=64, help="of the pooled form")
    made.add_argument("--normalize", type=bool, default=False, help="local scores")
    made.add_argument("--memory", type=bool, default=True, help="peaks, in processes of their own")
    parsed = parse_bench(made, as_lists(words, ("--vocab", "--k")))
    from softbeam.experiments.bench.soft_beam import FORMS, VOCABULARIES, run

    if parsed.model not in VOCABULARIES:
        raise UserError(f"--model {parsed.model}: must be one of {', '.join(VOCABULARIES)}")
    parsed.vocab = parsed.vocab or VOCABULARIES[parsed.model]

    def show(row: dict[str, Any]) -> None:
        ratios = "  ".join(f"{form} {row[form + '_ratio']:5.1f}x" for form in FORMS[1:])
        print(f"V={row['vocab']:<6} k={row['k']}  CE {row['ce_s']:.3f} s  {ratios}", flush=True)
        if "peak_mb" in row:
            peaks = "  ".join(f"{form} {mb:,.0f}" for form, mb in row["peak_mb"].items())
            print(f"{'':16}peak MB: {peaks}", flush=True)

    names = ("model", "vocab", "k", "repeats", "alpha", "candidates", "normalize", "memory")
    found = run(**{name: parsed[name] for name in names}, progress=show)
    if parsed.json:
        say_json(found)
    return 0


def bench_exact(words: list[str]) -> int:
    """Pseudolikelihood and log Z of an LSTM random field: time and memory."""
    parsed = parse_bench(bench_parser("exact", bench_exact.__doc__), words)
    from softbeam.experiments.bench.exact import run

    found = run(repeats=parsed.repeats, progress=lambda line: print(line, flush=True))
    if parsed.json:
        say_json(found)
    return 0


def bench_sampler(words: list[str]) -> int:
    """The fast sampler of masked LMs against plain ones: proposals/s, rows, ESS/s, memory."""
    made = bench_parser("sampler", bench_sampler.__doc__)
    made.set_defaults({"repeats": 3})
    known = "multi30k, trained once in about four minutes, and pretrained ones"
    made.add_argument("--models", type=list[str], default=["multi30k", "rxnmapper"], help=known)
    made.add_argument("--chains", type=int, default=8, help="number of chains")
    made.add_argument("--time", type=int, default=16, help="words of a caption")
    made.add_argument("--steps", type=int, default=16, help="proposals of a chain in a round")
    made.add_argument("--burn-in", type=int, default=30, help="sweeps before anything is measured")
    made.add_argument("--long", type=int, default=100, help="sweeps that the ESS is of")
    made.add_argument("--memory", type=bool, default=True, help="peaks, in processes of their own")
    parsed = parse_bench(made, as_lists(words, ("--models",)))
    from softbeam.experiments.bench.sampler import run

    names = ("models", "chains", "time", "steps", "repeats", "burn_in", "long", "memory")
    found = run(
        **{name: parsed[name] for name in names}, progress=lambda line: print(line, flush=True)
    )
    if parsed.json:
        say_json(found)
    return 0


def bench_score(words: list[str]) -> int:
    """Pseudo-log-likelihoods against the minicons package (softbeam[bench]): time, memory."""
    made = bench_parser("score", bench_score.__doc__)
    made.set_defaults({"repeats": 5})
    known = "bert-tiny, bert-mini, bert-small (shapes alone), or pretrained ones"
    made.add_argument("--models", type=list[str], default=["bert-mini", "sapiens-vh"], help=known)
    made.add_argument("--texts", type=int, default=8, help="number of texts")
    made.add_argument("--tokens", type=int, default=20, help="tokens of each")
    made.add_argument("--long", type=int, default=200, help="tokens of the text for memory")
    made.add_argument("--memory", type=bool, default=True, help="its peak, in a process of its own")
    parsed = parse_bench(made, as_lists(words, ("--models",)))
    from softbeam.experiments.bench.score import run

    names = ("models", "texts", "tokens", "long", "repeats", "memory")
    found = run(
        **{name: parsed[name] for name in names}, progress=lambda line: print(line, flush=True)
    )
    if parsed.json:
        say_json(found)
    return 0
