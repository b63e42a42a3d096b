"""The command that checks samplers against a known law: audit."""

from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import Parser, overwrite_argument, parser, say_json
from softbeam.errors import LARGEST_SEED, UserError, check_range, need
from softbeam.runtime import outputs

if TYPE_CHECKING:
    import torch

    from softbeam.experiments import laws
    from softbeam.models import catalogue
    from softbeam.sampling import (
        audit as auditing,
        certified_kernels,
        chain_rule,
        correcting,
        model_audit,
        oracles,
        schedulers,
        unmasking,
    )
else:
    torch = lazy("torch")
    auditing, certified_kernels = (
        lazy("softbeam.sampling.audit"),
        lazy("softbeam.sampling.certified_kernels"),
    )
    correcting, oracles = lazy("softbeam.sampling.correcting"), lazy("softbeam.sampling.oracles")
    unmasking, laws = lazy("softbeam.sampling.unmasking"), lazy("softbeam.experiments.laws")
    model_audit, chain_rule = (
        lazy("softbeam.sampling.model_audit"),
        lazy("softbeam.sampling.chain_rule"),
    )
    catalogue = lazy("softbeam.models.catalogue")
    schedulers = lazy("softbeam.sampling.schedulers")

SIZES = {
    "table": (3, 4),
    "sticky": (3, 4),
    "markov": (27, 128),
}  # words and length, if they are not given
LARGEST = {"table": 8, "sticky": 8, "markov": 512}  # length
PASSES = 12  # of correction, if `all` is not told
DIFFUSERS = "diffusers"  # the name of its scheduler for texts, with its usual settings


def audit_parser() -> Parser:
    """Make the parser of `softbeam audit`."""
    arguments = parser(
        "audit",
        "Let a sampler fill texts of a model whose law is known, and compare what it draws with "
        "that law; the exit code is 1 if it draws from another one. SAMPLER is a name (`audit "
        "list` prints them), all of them (`all`), or module:function, a function of a masked "
        "language model, texts, their hidden positions and a generator that returns the filled "
        "texts. With --mlm, texts are compared with exact ones of the chain rule over a real "
        "model.",
    )
    add = arguments.add_argument
    add("sampler", type=str, help="name, module:function, all, or list")
    add("--steps", type=int, default=4, help="steps in which a text is filled")
    add(
        "--oracle",
        type=str,
        choices=list(SIZES),
        default="table",
        help="the model: a random table of all texts; texts that stay at a token with "
        "probability 0.9; or a Markov chain",
    )
    add("--words", type=int, default=None, help="size of the vocabulary (3; 27 of a chain)")
    add("--time", type=int, default=None, help="length of the texts (4; 128 of a chain)")
    add("--scale", type=float, default=1.0, help="how far the model is from uniform")
    add("--draws", type=int | None, default=None, help="texts to draw (8000; 200 of --mlm)")
    add("--mlm", type=str | None, default=None, help="a masked LM in place of an oracle")
    add("--length", type=int | None, default=None, help="tokens of a text of --mlm")
    add("--figure", type=str | None, default=None, help="all: draw the errors, as law.svg")
    overwrite_argument(arguments)
    add("--correct", type=int, default=0, help="passes of Metropolis-Hastings over each text")
    add("--stride", type=int, default=2, help="distance of positions that a pass changes together")
    add("--seed", type=int, default=0, help="seed of the model and all draws")
    add("--json", action="store_true", help="print the figures as a last line of JSON")
    return arguments


def audit(words: list[str]) -> int:
    """Run `softbeam audit`."""
    parsed = audit_parser().parse_args(words)
    if parsed.sampler == "list":
        print("\n".join([*unmasking.NAMES, DIFFUSERS]))
        return 0
    if parsed.figure is not None and parsed.sampler != "all":
        raise UserError("--figure draws the errors of all samplers: softbeam audit all --figure …")
    draws = parsed.draws or (8000 if parsed.mlm is None else 200)
    limits = (
        ("steps", parsed.steps, 1, 10_000),
        ("draws", draws if parsed.draws is None else parsed.draws, 100, 10**6),
        ("correct", parsed.correct, 0, 10_000),
        ("stride", parsed.stride, 0, 512),
        ("seed", parsed.seed, 0, LARGEST_SEED),
    )
    for name, value, least, most in limits:
        check_range(f"--{name}", value, least=least, most=most)
    torch.set_num_threads(1)
    if parsed.mlm is not None:
        return on_a_model(parsed, draws)
    oracle = oracle_of(parsed)
    if parsed.sampler == "all":
        return every_sampler(parsed, oracle, draws)
    sampler = sampler_named(parsed.sampler, parsed.steps, oracle.mask_id)
    if parsed.correct:
        knobs = {"passes": parsed.correct, "stride": parsed.stride}
        sampler = correcting.corrected(sampler, oracle.energy, **knobs)
    try:
        result = auditing.audit(sampler, oracle, draws=draws, seed=parsed.seed)
    except (ValueError, TypeError) as error:
        raise UserError(f"the sampler {parsed.sampler!r}: {error}") from error
    figures = [figure._asdict() | {"off": figure.off} for figure in result.figures]
    return told(parsed, auditing.as_text(result), result, figures)


def told(parsed: Any, text: str, result: Any, figures: list[dict[str, Any]]) -> int:
    """Print a result, as JSON if asked; the exit code is 1 if the law is another one."""
    print(text)
    if parsed.json:
        verdict = {"sampler": parsed.sampler, "holds": result.holds, "rows": result.rows}
        say_json(verdict | {"figures": figures})
    return 0 if result.holds else 1


def oracle_of(parsed: Any) -> "oracles.Oracle":
    """Make the oracle that the options describe."""
    vocab, time = (
        usual if given is None else given
        for given, usual in zip((parsed.words, parsed.time), SIZES[parsed.oracle], strict=True)
    )
    check_range("--words", vocab, least=2, most=100)
    check_range("--time", time, least=2, most=LARGEST[parsed.oracle])
    check_range("--scale", parsed.scale, least=0, most=100)
    if parsed.oracle != "markov" and vocab**time > auditing.LARGEST_TABLE:
        raise UserError(f"--words {vocab} --time {time}: more than {auditing.LARGEST_TABLE} texts")
    if parsed.oracle == "sticky":
        return oracles.TableOracle.sticky(vocab, time)
    kinds: dict[str, Any] = {"table": oracles.TableOracle, "markov": oracles.MarkovOracle}
    oracle: oracles.Oracle = kinds[parsed.oracle].random(
        vocab, time, scale=parsed.scale, seed=parsed.seed
    )
    return oracle


def every_sampler(parsed: Any, oracle: "oracles.Oracle", draws: int) -> int:
    """Audit all named samplers, with and without correction; draw the errors if asked."""
    steps = [2**power for power in range(20) if 2**power <= parsed.steps]
    knobs = {"passes": parsed.correct or PASSES, "stride": parsed.stride, "draws": draws}
    with ExitStack() as stack:
        if parsed.figure is not None:
            path = Path(parsed.figure)
            if path.suffix not in (".svg", ".png"):
                raise UserError(f"--figure {path}: must end in .svg or .png")
            need("matplotlib", "report")
            stack.enter_context(outputs.new_file(path, overwrite=parsed.overwrite))
        points = laws.measure(oracle, steps=steps, seed=parsed.seed, **knobs)
        print(laws.as_text(points))
        if parsed.figure is not None:
            laws.draw(points, path)
            print(path)
    if parsed.json:
        say_json({"points": [point._asdict() for point in points]})
    return 0


def on_a_model(parsed: Any, draws: int) -> int:
    """Audit a sampler on a real model, against exact samples of the chain rule in one order."""
    if parsed.sampler == "all":
        raise UserError("--mlm takes one sampler; `softbeam audit list` prints their names")
    if parsed.length is None:
        raise UserError("--mlm needs --length, the number of tokens of a text")
    check_range("--length", parsed.length, least=2, most=10_000)
    mlm = catalogue.load_mlm(parsed.mlm)
    prompts = mlm.encode("[MASK]" * parsed.length)
    tokens, hidden = (table.repeat(draws, 1) for table in prompts[:2])
    sites = prompts.hidden[0].nonzero()[:, 0]
    rng = torch.Generator().manual_seed(parsed.seed)
    order = sites[torch.randperm(len(sites), generator=rng)]
    sampler = sampler_named(parsed.sampler, parsed.steps, mlm.mask_id)
    if parsed.correct:
        draft, knobs = sampler, {"passes": parsed.correct, "stride": parsed.stride}

        def sampler(lm: Any, *texts: Any) -> Any:  # the rows of energies count too
            energy = chain_rule.ChainEnergy(lm, order)
            return correcting.corrected(draft, energy, **knobs)(lm, *texts)

    try:
        result = model_audit.audit_model(sampler, mlm, tokens, hidden, order, seed=parsed.seed)
    except (ValueError, TypeError) as error:
        raise UserError(f"the sampler {parsed.sampler!r}: {error}") from error
    gaps = [gap._asdict() for gap in result.gaps]
    return told(parsed, model_audit.as_text(result), result, gaps)


def sampler_named(name: str, steps: int, mask_id: int) -> "unmasking.Unmask":
    """Return the sampler of a name, the scheduler of diffusers, or the user's own."""
    if name == DIFFUSERS:
        need("diffusers", "bench")
        scheduler = import_module("diffusers").BlockRefinementScheduler()
        return schedulers.scheduled(scheduler, mask_id=mask_id, steps=steps, temperature=1.0)
    if name in unmasking.NAMES:
        return unmasking.NAMES[name](steps)
    sampler: unmasking.Unmask = certified_kernels.imported(name, "sampler", unmasking.NAMES)
    return sampler
