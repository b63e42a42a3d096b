"""The command that samples p^alpha of a causal language model: power."""

from typing import TYPE_CHECKING

from softbeam._lazy import lazy
from softbeam.cli.parser import parser, say_json
from softbeam.errors import LARGEST_SEED, check_range, check_threads

if TYPE_CHECKING:
    import torch

    from softbeam.experiments import power as experiment
    from softbeam.models import catalogue
    from softbeam.models.huggingface import prefixes
    from softbeam.sampling import diagnostics
else:
    torch, catalogue = lazy("torch"), lazy("softbeam.models.catalogue")
    prefixes = lazy("softbeam.models.huggingface.prefixes")
    experiment = lazy("softbeam.experiments.power")
    diagnostics = lazy("softbeam.sampling.diagnostics")


def power(words: list[str]) -> int:
    """Run `softbeam power`."""
    arguments = parser(
        "power",
        "Sample continuations of a prompt from p^alpha of a causal language model, by resampling "
        "ends of texts and keeping what the model has read; print R-hat, effective sample size and "
        "the number of tokens read.",
    )
    add = arguments.add_argument
    add("--lm", type=str, required=True, help="a folder, a hub name, or smollm2-135m")
    add("--text", type=str, required=True, help="the prompt")
    add("--alpha", type=float, default=4.0, help="power of the probability of a text")
    add("--length", type=int, default=32, help="tokens of a continuation")
    add("--chains", type=int, default=4, help="Markov chains")
    add("--sweeps", type=int, default=10, help="sweeps, including the burn-in")
    add("--burn-in", type=int, default=2, help="sweeps at the start that are left out")
    add("--moves", type=int, default=8, help="places of a text at which it is cut in a sweep")
    add("--no-reuse", action="store_true", help="read the whole text for each proposal: as slow")
    add("--threads", type=int, default=1, help="number of processor threads")
    add("--seed", type=int, default=1, help="seed of all random numbers")
    add("--quiet", action="store_true", help="show no progress")
    add("--json", action="store_true", help="print the samples as a last line of JSON")
    parsed = arguments.parse_args(words)
    check_range("--alpha", parsed.alpha, above=0, most=1000)
    check_range("--length", parsed.length, least=2, most=10_000)
    check_range("--chains", parsed.chains, least=1, most=1000)
    check_range("--sweeps", parsed.sweeps, least=1, most=10**6)
    check_range("--burn-in", parsed.burn_in, least=0, below=parsed.sweeps)
    check_range("--moves", parsed.moves, least=1, most=parsed.length)
    check_range("--seed", parsed.seed, least=0, most=LARGEST_SEED)
    check_threads(parsed.threads)
    torch.set_num_threads(parsed.threads)
    folder = catalogue.fetch(parsed.lm) if parsed.lm in catalogue.MODELS else parsed.lm
    names = ("alpha", "length", "chains", "sweeps", "burn_in", "moves", "seed", "quiet")
    knobs = {name: parsed[name] for name in names}
    lm = prefixes.HfPrefixLM.load(folder)
    result = experiment.power_sample(lm, parsed.text, reuse=not parsed.no_reuse, **knobs)
    best = divmod(int(result.log_p.argmax()), parsed.chains)
    for text in dict.fromkeys(result.texts[-1]):
        print(f"{parsed.text}{text}")
    rhat, ess = result.mixing.rhat, result.mixing.ess
    print(
        f"log p {result.mixing.mean:.2f} (low temperature: {result.low_temperature:.2f}), R-hat "
        f"{'-' if rhat is None else f'{rhat:.3f}'}, ESS {'-' if ess is None else f'{ess:.0f}'}, "
        f"accept {result.accept:.2f}"
    )
    if rhat is not None and rhat > diagnostics.HIGH:
        print(f"R-hat is above {diagnostics.HIGH}: the chains disagree; give more --sweeps")
    times = result.from_start / max(result.tokens, 1)
    print(
        f"{result.tokens:,} tokens read; {result.from_start:,} if every proposal began with the "
        f"prompt ({times:.1f} times)"
    )
    if parsed.json:
        rest = {"log_p": result.log_p.tolist(), "best": result.texts[best[0]][best[1]]}
        figures = {"tokens": result.tokens, "from_start": result.from_start}
        say_json({"texts": result.texts, "rhat": rhat, "ess": ess} | figures | rest)
    return 0
