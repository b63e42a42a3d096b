"""The command that checks samplers against a known law: audit."""

from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import Parser, parser, say_json
from softbeam.errors import LARGEST_SEED, UserError, check_range

if TYPE_CHECKING:
    import torch

    from softbeam.sampling import (
        audit as auditing,
        certified_kernels,
        correcting,
        oracles,
        unmasking,
    )
else:
    torch = lazy("torch")
    auditing, certified_kernels = (
        lazy("softbeam.sampling.audit"),
        lazy("softbeam.sampling.certified_kernels"),
    )
    correcting, oracles = lazy("softbeam.sampling.correcting"), lazy("softbeam.sampling.oracles")
    unmasking = lazy("softbeam.sampling.unmasking")

SIZES = {"table": (3, 4), "markov": (27, 128)}  # words and length, if they are not given
LARGEST = {"table": 8, "markov": 512}  # length


def audit_parser() -> Parser:
    """Make the parser of `softbeam audit`."""
    arguments = parser(
        "audit",
        "Let a sampler fill texts of a model whose law is known, and compare what it draws with "
        "that law; the exit code is 1 if it draws from another one. SAMPLER is a name (`audit "
        "list` prints them) or module:function, a function of a masked language model, texts, "
        "their hidden positions and a generator that returns the filled texts.",
    )
    add = arguments.add_argument
    add("sampler", type=str, help="name, module:function, or list")
    add("--steps", type=int, default=4, help="steps in which a text is filled")
    add(
        "--oracle",
        type=str,
        choices=list(SIZES),
        default="table",
        help="the model: a table of all texts, or a Markov chain",
    )
    add("--words", type=int, default=None, help="size of the vocabulary (3; 27 of a chain)")
    add("--time", type=int, default=None, help="length of the texts (4; 128 of a chain)")
    add("--scale", type=float, default=1.0, help="how far the model is from uniform")
    add("--draws", type=int, default=8000, help="texts to draw")
    add("--correct", type=int, default=0, help="passes of Metropolis-Hastings over each text")
    add("--stride", type=int, default=2, help="distance of positions that a pass changes together")
    add("--seed", type=int, default=0, help="seed of the model and all draws")
    add("--json", action="store_true", help="print the figures as a last line of JSON")
    return arguments


def audit(words: list[str]) -> int:
    """Run `softbeam audit`."""
    parsed = audit_parser().parse_args(words)
    if parsed.sampler == "list":
        print("\n".join(unmasking.NAMES))
        return 0
    vocab, time = (
        usual if given is None else given
        for given, usual in zip((parsed.words, parsed.time), SIZES[parsed.oracle], strict=True)
    )
    limits = (
        ("steps", parsed.steps, 1, 10_000),
        ("words", vocab, 2, 100),
        ("time", time, 2, LARGEST[parsed.oracle]),
        ("draws", parsed.draws, 100, 10**6),
        ("correct", parsed.correct, 0, 10_000),
        ("stride", parsed.stride, 0, 512),
        ("seed", parsed.seed, 0, LARGEST_SEED),
    )
    for name, value, least, most in limits:
        check_range(f"--{name}", value, least=least, most=most)
    check_range("--scale", parsed.scale, least=0, most=100)
    if parsed.oracle == "table" and vocab**time > auditing.LARGEST_TABLE:
        raise UserError(f"--words {vocab} --time {time}: more than {auditing.LARGEST_TABLE} texts")
    torch.set_num_threads(1)
    kinds: dict[str, Any] = {"table": oracles.TableOracle, "markov": oracles.MarkovOracle}
    oracle = kinds[parsed.oracle].random(vocab, time, scale=parsed.scale, seed=parsed.seed)
    sampler = sampler_named(parsed.sampler, parsed.steps)
    if parsed.correct:
        knobs = {"passes": parsed.correct, "stride": parsed.stride}
        sampler = correcting.corrected(sampler, oracle.energy, **knobs)
    try:
        result = auditing.audit(sampler, oracle, draws=parsed.draws, seed=parsed.seed)
    except (ValueError, TypeError) as error:
        raise UserError(f"the sampler {parsed.sampler!r}: {error}") from error
    print(auditing.as_text(result))
    if parsed.json:
        figures = [figure._asdict() | {"off": figure.off} for figure in result.figures]
        say_json(
            {
                "sampler": parsed.sampler,
                "holds": result.holds,
                "rows": result.rows,
                "figures": figures,
            }
        )
    return 0 if result.holds else 1


def sampler_named(name: str, steps: int) -> "unmasking.Unmask":
    """Return the sampler of a name, or the user's own."""
    if name in unmasking.NAMES:
        return unmasking.NAMES[name](steps)
    sampler: unmasking.Unmask = certified_kernels.imported(name, "sampler", unmasking.NAMES)
    return sampler
