"""Commands for masked language models: sample, score, infill, certify."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli import designs as designing
from softbeam.cli.parser import (
    Parser,
    accept_argument,
    as_lists,
    device_argument,
    overwrite_argument,
    parser,
    say_json,
)
from softbeam.cli.texts import (
    config_arguments,
    given_settings,
    given_texts,
    names_of,
    text_arguments,
    texts_to_sample,
)
from softbeam.cli.workers import cluster_arguments, cluster_of
from softbeam.data.fasta import Named
from softbeam.errors import LARGEST_SEED, UserError, check_range, check_threads
from softbeam.runtime import outputs
from softbeam.runtime.cluster import Cluster
from softbeam.runtime.progress import Progress
from softbeam.sampling.texts.settings import (
    NOT_OF_INFILL,
    Rows,
    SamplingConfig,
    check_rows,
    infill_settings,
)

if TYPE_CHECKING:
    import torch

    from softbeam.experiments import many_texts
    from softbeam.models import catalogue
    from softbeam.sampling import certified_kernels
    from softbeam.sampling.texts import (
        designs,
        files,
        infill as infilling,
        own_terms,
        score as scoring,
        summary,
    )
    from softbeam.sampling.texts.infill import Filling
    from softbeam.types import TextModel
else:
    torch, catalogue = lazy("torch"), lazy("softbeam.models.catalogue")
    many_texts = lazy("softbeam.experiments.many_texts")
    certified_kernels = lazy("softbeam.sampling.certified_kernels")
    files, summary = lazy("softbeam.sampling.texts.files"), lazy("softbeam.sampling.texts.summary")
    infilling, scoring = (
        lazy("softbeam.sampling.texts.infill"),
        lazy("softbeam.sampling.texts.score"),
    )
    designs = lazy("softbeam.sampling.texts.designs")
    own_terms = lazy("softbeam.sampling.texts.own_terms")

DTYPES = ("float32", "float64", "bfloat16", "float16")
PARTS = "folder of what workers have finished, until all is; COMMAND.parts here if not given"
MOST_SAMPLES = 10**6  # of a filled text, which are in memory


def sample(words: list[str]) -> int:
    """Run `softbeam sample`."""
    arguments = parser(
        "sample",
        "Run Markov chains over texts of a masked language model, and write each sample to a file "
        "of JSON lines when it is drawn; write a summary (.json) and a plot (.png) beside it.",
    )
    mlm_arguments(arguments)
    text_arguments(arguments, "a text; each [MASK] is a gap of one token")
    arguments.add_argument(
        "--length", type=int | None, default=None, help="sample a text of this many gaps"
    )
    arguments.add_argument(
        "--out",
        type=str,
        default="samples.jsonl",
        help="file to write; designs.csv or designs.fasta has the distinct samples, best first, "
        "and designs.jsonl all of them",
    )
    arguments.add_argument("--resume", action="store_true", help="continue an interrupted file")
    overwrite_argument(arguments)
    accept_argument(arguments)
    arguments.add_argument(
        "--checkpoint-every", type=float, default=2.0, help="seconds between checkpoints, at least"
    )
    config_arguments(arguments)
    arguments.add_argument(
        "--json", action="store_true", help="print the summary as a last line of JSON"
    )
    parsed = arguments.parse_args(as_lists(words, ("--anneal",)))
    check_range("--checkpoint-every", parsed.checkpoint_every, least=0)
    check_threads(parsed.threads)
    config = SamplingConfig(**given_settings(parsed))
    texts = texts_to_sample(parsed, config)
    out = Path(parsed.out)
    if not out.name:
        raise UserError(f"--out {parsed.out!r}: must be the name of a file")
    with ExitStack() as stack:
        if table := designing.is_table(out):
            old = parsed.resume or parsed.overwrite
            own = outputs.new_file(out, overwrite=old, inputs=files_read(parsed))
            stack.enter_context(own)
        samples = designing.samples_of(out) if table else out
        record = drawn(parsed, samples, texts, config)
        if table:
            designing.write_designs(out, designs.designs(samples))
    print(summary.as_text(record))
    if table:
        print(f"distinct samples after the burn-in, best first: {out}")
    if parsed.json:
        say_json(record)
    return 0


def drawn(parsed: Any, out: Path, texts: list[Named], config: SamplingConfig) -> dict[str, Any]:
    """Sample texts into a file, and return its summary; a finished file is only summarized."""
    quiet, cluster, accept = parsed.quiet, cluster_of(parsed), parsed.accept_changed_inputs
    goes_on = {"resume": parsed.resume, "overwrite": parsed.overwrite}
    with files.sample_files(out, read=files_read(parsed), **goes_on) as place:
        if parsed.resume:
            record = summary.finished(place, header_of(parsed, texts, config), accept=accept)
            if record is not None:
                return record
        for line in () if quiet else config.caveats():
            print(f"note: {line}", file=sys.stderr)
        if cluster is None:
            mlm = load_mlm(parsed)
        else:
            model = model_of(parsed)
        header = header_of(parsed, texts, config)
        if parsed.resume:
            header = files.resumed_header(place, header, accept=accept)
        knobs = {"resume": parsed.resume, "quiet": quiet}
        if cluster is None:
            every = parsed.checkpoint_every
            seconds = files.write_samples(mlm, header, config, place, every=every, **knobs)
        else:
            write = many_texts.write_samples
            seconds = write(model, header, config, place, cluster, **knobs)
        return summary.finish(place, header, seconds=seconds, named=out)


def model_of(parsed: Any) -> "many_texts.Model":
    """Say how workers load the model, which is downloaded here if need be."""
    if parsed.mlm in catalogue.MODELS:
        catalogue.fetch(parsed.mlm)
    names = ("mlm", "dtype", "device", "threads", "trust_remote_code")
    state = many_texts.state(parsed.mlm)
    return many_texts.Model(**{name: parsed[name] for name in names}, files=state)


def header_of(parsed: Any, texts: list[Named], config: SamplingConfig) -> "files.Header":
    """Collect what the samples depend on, with digests of files of the model and of terms."""
    read = catalogue.model_files(parsed.mlm) | own_terms.term_files(config)
    names, given = names_of(texts), [text for _, text in texts]
    header = files.make_header(parsed.mlm, given, config, parsed.threads, read)
    return header if names is None else header | {"names": names}


def files_read(parsed: Any) -> list[Path]:
    """Return the files that the options name, and those of the model."""
    given = (parsed.input, parsed.lexicon, parsed.allowed, parsed.allowed_at)
    named = [Path(name) for name in given if name not in (None, "-")]
    return [*named, *catalogue.model_files(parsed.mlm).values()]


def score(words: list[str]) -> int:
    """Run `softbeam score`."""
    arguments = parser(
        "score", "Print the pseudo-log-likelihood of each text: its tokens are masked in turn."
    )
    mlm_arguments(arguments)
    text_arguments(arguments, "a text")
    arguments.add_argument(
        "--energy",
        type=str,
        choices=["local", "raw", "strided", "chain-rule"],
        default="local",
        help="sum log-probabilities (local) or logits (raw), mask tokens together (strided), or "
        "predict tokens from left to right (chain-rule)",
    )
    arguments.add_argument(
        "--stride", type=int, default=8, help="distance of tokens that strided masks together"
    )
    arguments.add_argument("--per-token", action="store_true", help="print a score for each token")
    arguments.add_argument(
        "--format", type=str, choices=["text", "jsonl", "tsv"], default="text", help="output format"
    )
    arguments.add_argument(
        "--dtype",
        type=str,
        choices=list(DTYPES),
        default="float32",
        help="number format of the model",
    )
    arguments.add_argument(
        "--rows", type=Rows, default=256, help="largest number of rows at once; auto is what fits"
    )
    arguments.add_argument("--parts", type=str, default=None, help=PARTS)
    parsed = arguments.parse_args(words)
    check_rows(parsed.rows)
    check_threads(parsed.threads)
    named, cluster = given_texts(parsed), cluster_of(parsed)
    texts = [text for _, text in named]
    knobs = {name: parsed[name] for name in ("energy", "rows", "stride")}
    with ExitStack() as stack:
        if cluster is not None:
            groups = many_texts.groups("score", model_of(parsed), texts, scoring.TOGETHER, knobs)
            rows = stack.enter_context(
                computed("score", groups, many_texts.score_group, cluster, parsed)
            )
        else:
            rows = scoring.score_texts(load_mlm(parsed), texts, **knobs)
        quiet = parsed.quiet or sys.stdout.isatty() or cluster is not None
        progress = stack.enter_context(Progress("score", len(texts), quiet=quiet))
        scored = (scoring.Scored(*row) for row in rows)
        look = {"style": parsed.format, "per_token": parsed.per_token, "names": names_of(named)}
        for line in scoring.rendered(scored, **look):
            print(line, flush=True)
            progress.advance()
    return 0


@contextmanager
def computed(
    name: str, groups: "list[many_texts.Group]", work: Any, cluster: Cluster, parsed: Any
) -> Iterator[Iterator[Any]]:
    """Compute groups in a cluster, and give the rows of all of them; then remove --parts."""
    folder = Path(parsed.parts or f"{name}.parts")
    with many_texts.parts(folder):
        yield many_texts.rows(groups, work, folder, cluster, quiet=parsed.quiet)


def infill(words: list[str]) -> int:
    """Run `softbeam infill`."""
    arguments = parser(
        "infill",
        "Print the distinct fillings of all gaps of a text together, lowest energy first, with "
        "their shares of the samples. mh samples the joint distribution; enumerate lists all "
        "fillings with their probabilities; auto does so if they are at most 10,000, and samples "
        "otherwise; in-turn fills the gaps one after another; greedy fills all of them at once.",
    )
    mlm_arguments(arguments)
    text_arguments(arguments, "a text with gaps, [MASK], or [WORD] for a whole word")
    arguments.add_argument("--samples", type=int, default=200, help="number of samples to draw")
    arguments.add_argument(
        "--method",
        type=str,
        choices=["mh", "in-turn", "greedy", "enumerate", "auto"],
        default="mh",
        help="how to fill the gaps",
    )
    arguments.add_argument("--show", type=int, default=10, help="number of fillings to print")
    arguments.add_argument(
        "--out", type=str | None, default=None, help=f"write all fillings: {designing.FORMS}"
    )
    overwrite_argument(arguments)
    config_arguments(arguments, skip=NOT_OF_INFILL)
    arguments.add_argument(
        "--json", action="store_true", help="print all fillings of a text as a line of JSON"
    )
    arguments.add_argument("--parts", type=str, default=None, help=PARTS)
    parsed = arguments.parse_args(words)
    check_threads(parsed.threads)
    check_range("--show", parsed.show, least=1)
    check_range("--samples", parsed.samples, least=1, most=MOST_SAMPLES)
    config, named = infill_settings(given_settings(parsed)), given_texts(parsed)
    texts, table = [text for _, text in named], None if parsed.out is None else Path(parsed.out)
    if table is not None and not designing.is_table(table):
        raise UserError(f"--out {table}: must end in {designing.FORMS}")
    knobs, cluster = {"samples": parsed.samples, "method": parsed.method}, cluster_of(parsed)
    bar = Progress("infill", len(texts), quiet=parsed.quiet or cluster is not None)
    with ExitStack() as stack:
        if table is not None:
            read = files_read(parsed)
            own = outputs.new_file(table, overwrite=parsed.overwrite, inputs=read)
            stack.enter_context(own)
        if cluster is not None:
            more = {"config": asdict(config)} | knobs
            groups = many_texts.groups("infill", model_of(parsed), texts, 1, more)
            filled = stack.enter_context(
                computed("infill", groups, many_texts.fill_group, cluster, parsed)
            )
        else:
            mlm = load_mlm(parsed)
            filled = infilling.fill_texts(mlm, texts, config, on_sweep=bar.within, **knobs)
        rows = []
        for i, given in enumerate(named):
            with bar:
                whole = [infilling.Filling(*filling) for filling in next(filled)]
                bar.advance()
            show_fillings(given, whole, parsed)
            rows += [designs.filled(given.name or str(i), given.text, each) for each in whole]
        if table is not None:
            designing.write_designs(table, rows)
    return 0


def show_fillings(given: Named, fillings: "list[Filling]", parsed: Any) -> None:
    """Print the fillings of a text as a table, and as JSON if `--json` is given."""
    name, text = given
    print(f"  share    energy  {'text' if parsed.input is None else name or text}")
    for filling in fillings[: parsed.show]:
        print(f"{filling.share:7.3f}  {filling.energy:8.3f}  {filling.text}")
    if len(fillings) > parsed.show:
        print(f"and {len(fillings) - parsed.show} others")
    if parsed.json:
        rows = [filling._asdict() for filling in fillings]
        say_json(
            ({"name": name} if name else {})
            | {"text": text, "method": parsed.method, "fillings": rows}
        )


def mlm_arguments(arguments: Parser) -> None:
    """Add the options of the model, and of a cluster that may run it."""
    model_arguments(arguments)
    cluster_arguments(arguments)


def model_arguments(arguments: Parser, *, required: bool = True) -> None:
    """Add the options that name the model and limit its use of the machine."""
    named = "a folder, a hub name, a name of `models list`, or a .pdb file"
    if required:
        arguments.add_argument("--mlm", type=str, required=True, help=named)
    else:
        arguments.add_argument("--mlm", type=str | None, default=None, help=named)
    arguments.add_argument("--threads", type=int, default=1, help="number of processor threads")
    device_argument(arguments)
    trust = "run the code that the model's folder or repository brings; read it first"
    arguments.add_argument("--trust-remote-code", action="store_true", help=trust)
    arguments.add_argument("--quiet", action="store_true", help="show no progress")


def load_mlm(parsed: Any) -> "TextModel":
    """Load the model that the options name."""
    check_threads(parsed.threads)
    torch.set_num_threads(parsed.threads)
    return catalogue.load_mlm(
        parsed.mlm,
        dtype=parsed.dtype,
        device=parsed.device,
        trust_remote_code=parsed.trust_remote_code,
    )


def certify(words: list[str]) -> int:
    """Run `softbeam certify`."""
    arguments = parser(
        "certify",
        "Build the transition matrix of a kernel on a small masked language model and check it; "
        "the exit code is 0 only if every certificate holds. KERNEL is a name (`certify list` "
        "prints them) or module:function, a function of a masked language model and an energy.",
    )
    arguments.add_argument("kernel", type=str, help="name, module:function, or list")
    arguments.add_argument(
        "--energy",
        type=str,
        choices=["local", "raw"],
        default="local",
        help="energy of the target: sums of log-probabilities (local) or of logits (raw)",
    )
    arguments.add_argument("--words", type=int, default=3, help="size of the vocabulary")
    arguments.add_argument("--time", type=int, default=3, help="length of the texts")
    arguments.add_argument("--seed", type=int, default=0, help="seed of the model and all samples")
    arguments.add_argument(
        "--json", action="store_true", help="print the certificates as a last line of JSON"
    )
    parsed = arguments.parse_args(words)
    for name, low, high in (("words", 2, 6), ("time", 2, 4), ("seed", 0, LARGEST_SEED)):
        check_range(f"--{name}", parsed[name], least=low, most=high)
    if parsed.kernel == "list":
        kernels = certified_kernels.KERNELS
        print("\n".join(f"{name:20} {kernel.what}" for name, kernel in kernels.items()))
        return 0
    torch.set_num_threads(1)  # for texts of three words, more threads only wait for each other
    options = {name: parsed[name] for name in ("energy", "words", "time", "seed")}
    certificates = certified_kernels.certificates(parsed.kernel, **options)
    for each in certificates:
        verdict = "holds" if each.holds else "FAILS"
        print(
            f"{verdict}  {each.name:28} {each.value:10.2e} (limit {each.limit:.0e})  {each.detail}"
        )
    holds = all(each.holds for each in certificates)
    if parsed.json:
        rows = [each._asdict() for each in certificates]
        say_json({"kernel": parsed.kernel, "holds": holds, "certificates": rows})
    return 0 if holds else 1
