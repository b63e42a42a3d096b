"""Commands that measure speed: bench."""

from typing import Any

from softbeam.cli.parsing import Parser, as_lists, parser, say_json
from softbeam.errors import UserError


def bench(words: list[str]) -> int:
    """Measure speed: softbeam bench train | soft-beam | exact [--json]"""
    benches = {"train": bench_train, "soft-beam": bench_soft_beam, "exact": bench_exact}
    if not words or words[0] in ("-h", "--help"):
        rows = [f"  {name:12} {run.__doc__}" for name, run in benches.items()]
        print("usage: softbeam bench WHAT [--json] (WHAT --help lists the options)\n")
        print("\n".join(rows))
        return 0
    if words[0] not in benches:
        raise UserError(f"no benchmark {words[0]!r}; there are {', '.join(benches)}")
    return benches[words[0]](words[1:])


def bench_parser(name: str, description: str | None) -> Parser:
    made = parser(f"bench {name}", description or "")
    made.add_argument("--repeats", type=int, default=7, help="rounds; medians are reported")
    made.add_argument("--threads", type=int, default=1, help="processor threads")
    made.add_argument("--json", action="store_true", help="figures as a last line of JSON")
    return made


def parse_bench(made: Parser, words: list[str]) -> Any:
    parsed = made.parse_args(words)
    for name in ("repeats", "threads"):
        if parsed[name] < 1:
            raise UserError(f"--{name} {parsed[name]}: must be at least 1")
    import torch

    torch.set_num_threads(parsed.threads)
    return parsed


def bench_train(words: list[str]) -> int:
    """Cross-entropy training against a bare loop over torch.nn.LSTM."""
    parsed = parse_bench(bench_parser("train", bench_train.__doc__), words)
    from softbeam.bench.train import run

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
    made.add_argument("--vocab", type=list[int], default=[10, 1284, 32000], help="sizes")
    made.add_argument("--k", type=list[int], default=[1, 3, 5], help="beam sizes")
    made.add_argument("--alpha", type=float, default=4.0, help="of the relaxation")
    made.add_argument("--candidates", type=int, default=64, help="of the pooled form")
    made.add_argument("--normalize", type=bool, default=False, help="local scores")
    made.add_argument("--memory", type=bool, default=True, help="peaks, in processes of their own")
    parsed = parse_bench(made, as_lists(words, ("--vocab", "--k")))
    from softbeam.bench.soft_beam import run

    def show(row: dict[str, Any]) -> None:
        ratios = "  ".join(
            f"{form} {row[form + '_s'] / row['ce_s']:5.1f}x"
            for form in ("reference", "dense", "pooled")
        )
        print(f"V={row['vocab']:<6} k={row['k']}  CE {row['ce_s']:.3f} s  {ratios}", flush=True)

    names = ("vocab", "k", "repeats", "alpha", "candidates", "normalize", "memory")
    found = run(**{name: parsed[name] for name in names}, progress=show)
    if parsed.json:
        say_json(found)
    return 0


def bench_exact(words: list[str]) -> int:
    """Pseudolikelihood and log Z of an LSTM random field: time and memory."""
    parsed = parse_bench(bench_parser("exact", bench_exact.__doc__), words)
    from softbeam.bench.exact import run

    found = run(repeats=parsed.repeats, progress=lambda line: print(line, flush=True))
    if parsed.json:
        say_json(found)
    return 0
