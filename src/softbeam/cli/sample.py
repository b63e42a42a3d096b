"""Commands for masked language models: sample, score, infill, certify."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam.cli.parser import Parser, add_fields, as_lists, given_texts, parser, say_json
from softbeam.data.readers import read_texts
from softbeam.errors import LARGEST_SEED, UserError, limited
from softbeam.runtime import ranks
from softbeam.sampling.texts.settings import SamplingConfig

if TYPE_CHECKING:
    from softbeam.models.huggingface.masked import HfMaskedLM
    from softbeam.sampling.texts.infill import Filling

OF_SAMPLING = ("sweeps", "forced", "anneal", "kernel", "order", "start", "free", "at_once")


def sample(words: list[str]) -> int:
    """Texts of a masked LM: softbeam sample --mlm NAME --text "…[MASK]…" --out samples.jsonl"""
    made = parser(
        "sample",
        "Markov chains over texts of a masked language model, written to a file of JSON lines "
        "while they run; beside it a summary (.json) and a plot of the traces (.png).",
    )
    mlm_arguments(made)
    made.add_argument("--text", type=str, default=None, help="a text; [MASK] is a gap of one token")
    made.add_argument("--input", type=str, default=None, help="texts, one on a line; - for stdin")
    made.add_argument("--length", type=int | None, default=None, help="a text of so many gaps")
    made.add_argument("--out", type=str, default="samples.jsonl", help="the file to write")
    made.add_argument("--resume", action="store_true", help="go on with a file that was stopped")
    made.add_argument("--checkpoint-every", type=float, default=2.0, help="seconds, at least")
    config_arguments(made)
    made.add_argument("--json", action="store_true", help="the summary as a last line of JSON")
    parsed = made.parse_args(as_lists(words, ("--anneal",)))
    limited("--checkpoint-every", parsed.checkpoint_every, least=0)
    config, texts = to_config(parsed), texts_to_sample(parsed)
    from softbeam.sampling.texts import files, summary

    out = Path(parsed.out)
    header = files.make_header(parsed.mlm, texts, config, parsed.threads)
    quiet = parsed.quiet or not ranks.first()
    with ranks.joined():
        known = summary.finished(out, header) if parsed.resume and ranks.first() else None
        found = ranks.from_first(known)
        if found is None:
            for line in () if quiet else [*config.caveats(), *idle(texts, config)]:
                print(f"note: {line}", file=sys.stderr)
            mlm = load_mlm(parsed)
            seconds = files.write_samples(
                mlm,
                header,
                config,
                out,
                resume=parsed.resume,
                every=parsed.checkpoint_every,
                quiet=quiet,
            )
            found = summary.finish(out, header, seconds=seconds) if ranks.first() else None
    if found is not None and ranks.first():
        print(summary.as_text(found))
        if parsed.json:
            say_json(found)
    return 0


def idle(texts: list[str], config: SamplingConfig) -> list[str]:
    """A sentence where some of the processes have nothing to sample."""
    from softbeam.sampling.texts.files import grouped

    groups = len(grouped(texts, config))
    if groups >= ranks.world():
        return []
    few = max(config.chains, config.chains * len(texts) // ranks.world())
    return [
        f"{ranks.world() - groups} of {ranks.world()} processes have nothing to do: the texts are "
        f"{groups} times --at-once {config.at_once} chains; --at-once {few} makes more of them"
    ]


def score(words: list[str]) -> int:
    """Pseudo-log-likelihoods: softbeam score --mlm NAME --input FILE [--per-token]"""
    made = parser("score", "The pseudo-log-likelihood of each text, its tokens masked in turn.")
    mlm_arguments(made)
    made.add_argument("--text", type=str, default=None, help="a text")
    made.add_argument("--input", type=str, default=None, help="texts, one on a line; - for stdin")
    made.add_argument("--energy", type=str, choices=["local", "raw"], default="local")
    made.add_argument("--per-token", action="store_true", help="also the score of each token")
    made.add_argument("--format", type=str, choices=["text", "jsonl", "tsv"], default="text")
    made.add_argument("--dtype", type=str, choices=list(DTYPES), default="float32")
    made.add_argument("--rows", type=int, default=256, help="masked rows at once, at most")
    parsed = made.parse_args(words)
    if parsed.rows < 1:
        raise UserError(f"--rows {parsed.rows}: must be at least 1")
    texts = given_texts(parsed)
    from softbeam.runtime.progress import Progress
    from softbeam.sampling.texts import score as scoring

    mlm = load_mlm(parsed)
    quiet = parsed.quiet or sys.stdout.isatty() or not ranks.first()
    with ranks.joined(), Progress("score", len(texts), quiet=quiet) as progress:
        rows = scoring.scored(mlm, texts, energy=parsed.energy, rows=parsed.rows)
        for line in scoring.rendered(rows, style=parsed.format, per_token=parsed.per_token):
            if ranks.first():
                print(line, flush=True)
                progress.advance()
    return 0


def infill(words: list[str]) -> int:
    """Fill all gaps of a text jointly: softbeam infill --mlm NAME --text "… [MASK] [MASK] …\""""
    made = parser(
        "infill",
        "The distinct fillings of all gaps of a text together, lowest energy first, with their "
        "shares of the samples. mh samples the joint distribution; in-turn fills gaps one after "
        "another, and greedy all at once.",
    )
    mlm_arguments(made)
    made.add_argument("--text", type=str, default=None, help="a text with gaps, [MASK]")
    made.add_argument("--input", type=str, default=None, help="texts, one on a line; - for stdin")
    made.add_argument("--samples", type=int, default=200, help="fillings to draw")
    made.add_argument("--method", type=str, choices=["mh", "in-turn", "greedy"], default="mh")
    made.add_argument("--show", type=int, default=10, help="fillings to print")
    config_arguments(made, skip=OF_SAMPLING)
    made.add_argument("--json", action="store_true", help="a line of JSON with all of a text's")
    parsed = made.parse_args(words)
    for name in ("samples", "show"):
        if parsed[name] < 1:
            raise UserError(f"--{name} {parsed[name]}: must be at least 1")
    limited("--burn-in", parsed.burn_in, least=0)
    config, texts = to_config(parsed, sweeps=parsed.burn_in + 1), given_texts(parsed)
    from softbeam.sampling.texts.infill import infill_all

    mlm = load_mlm(parsed)
    with ranks.joined():
        every = infill_all(mlm, texts, config, samples=parsed.samples, method=parsed.method)
        for text, found in zip(texts, every, strict=True):
            if ranks.first():
                show_fillings(text, found, parsed)
    return 0


def show_fillings(text: str, found: "list[Filling]", parsed: Any) -> None:
    """The fillings of a text as a table, and as JSON where asked."""
    print(f"  share    energy  {'text' if parsed.input is None else text}")
    for one in found[: parsed.show]:
        print(f"{one.share:7.3f}  {one.energy:8.3f}  {one.text}")
    if len(found) > parsed.show:
        print(f"and {len(found) - parsed.show} others")
    if parsed.json:
        rows = [one._asdict() for one in found]
        say_json({"text": text, "method": parsed.method, "fillings": rows})


DTYPES = ("float32", "float64", "bfloat16")


def mlm_arguments(made: Parser) -> None:
    """The model, and how much of the machine it takes."""
    made.add_argument("--mlm", type=str, required=True, help="folder, hub name, or `models list`")
    made.add_argument("--threads", type=int, default=1, help="processor threads")
    trust = "run the code that the model's folder or repository brings; read it first"
    made.add_argument("--trust-remote-code", action="store_true", help=trust)
    made.add_argument("--quiet", action="store_true", help="no progress")


def load_mlm(parsed: Any) -> "HfMaskedLM":
    if parsed.threads < 1:
        raise UserError(f"--threads {parsed.threads}: must be at least 1")
    import torch

    from softbeam.models import catalogue

    torch.set_num_threads(parsed.threads)
    return catalogue.load(
        parsed.mlm,
        dtype=getattr(torch, parsed.dtype),
        trust_remote_code=parsed.trust_remote_code,
    )


def config_arguments(made: Parser, *, skip: tuple[str, ...] = ()) -> None:
    """The flags of a `SamplingConfig`; its lists are given as files or words."""
    add_fields(made, SamplingConfig, skip=(*skip, "lexicon", "allowed"))
    made.add_argument("--lexicon", type=str, default=None, help="file of words to favour")
    tokens = "tokens that alone may be sampled: a file, one on a line, or A,B,C"
    made.add_argument("--allowed", type=str, default=None, help=tokens)


def to_config(parsed: Any, **others: Any) -> SamplingConfig:
    given = {f.name: parsed[f.name] for f in fields(SamplingConfig) if f.name in parsed}
    words = () if parsed.lexicon is None else some_lines("--lexicon", parsed.lexicon)
    allowed: tuple[str, ...] = ()
    if parsed.allowed is not None and Path(parsed.allowed).is_file():
        allowed = some_lines("--allowed", parsed.allowed)
    elif parsed.allowed is not None:
        allowed = tuple(parsed.allowed.replace(",", " ").split())
        if not allowed:
            raise UserError(f"--allowed {parsed.allowed!r}: has no token")
    return SamplingConfig(**given | {"lexicon": words, "allowed": allowed} | others)


def some_lines(option: str, path: str) -> tuple[str, ...]:
    """The lines of a file that are not empty; there is at least one."""
    lines = tuple(line.strip() for line in read_texts(path) if line.strip())
    if not lines:
        raise UserError(f"{option} {path}: has no line")
    return lines


def texts_to_sample(parsed: Any) -> list[str]:
    if parsed.length is None:
        return given_texts(parsed)
    if parsed.text is not None or parsed.input is not None:
        raise UserError("--length makes a text of gaps; give no --text or --input with it")
    if parsed.length < 1:
        raise UserError(f"--length {parsed.length}: must be at least 1")
    return ["[MASK]" * parsed.length]


def certify(words: list[str]) -> int:
    """Is a sampler right? softbeam certify KERNEL [--energy local|raw] [--json]"""
    made = parser(
        "certify",
        "Build a kernel's whole transition matrix on a small masked language model and check it; "
        "the exit code is 0 only if every certificate holds. KERNEL is a name (list shows them) or "
        "module:function, a function of a masked language model and an energy.",
    )
    made.add_argument("kernel", type=str, help="name, module:function, or list")
    made.add_argument("--energy", type=str, choices=["local", "raw"], default="local")
    made.add_argument("--words", type=int, default=3, help="size of the vocabulary")
    made.add_argument("--time", type=int, default=3, help="length of the texts")
    made.add_argument("--seed", type=int, default=0, help="of the model and of all samples")
    made.add_argument("--json", action="store_true", help="certificates as a last line of JSON")
    parsed = made.parse_args(words)
    for name, low, high in (("words", 2, 6), ("time", 2, 4), ("seed", 0, LARGEST_SEED)):
        if not low <= parsed[name] <= high:
            raise UserError(f"--{name} {parsed[name]}: must be from {low} to {high}")
    from softbeam.sampling.certified_kernels import KERNELS, certificates

    if parsed.kernel == "list":
        print("\n".join(f"{name:20} {kernel.what}" for name, kernel in KERNELS.items()))
        return 0
    import torch

    torch.set_num_threads(1)  # texts of three words: more threads only wait for each other
    names = ("energy", "words", "time", "seed")
    found = certificates(parsed.kernel, **{name: parsed[name] for name in names})
    for one in found:
        said = "holds" if one.holds else "FAILS"
        print(f"{said}  {one.name:28} {one.value:10.2e} (limit {one.limit:.0e})  {one.detail}")
    if parsed.json:
        rows = [one._asdict() for one in found]
        holds = all(one.holds for one in found)
        say_json({"kernel": parsed.kernel, "holds": holds, "certificates": rows})
    return 0 if all(one.holds for one in found) else 1
