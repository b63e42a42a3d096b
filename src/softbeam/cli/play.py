"""The command that shows beams and chains while they are computed: play."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.cli.parser import Parser, as_lists, files_in, overwrite_argument, parser
from softbeam.cli.sample import load_mlm, model_arguments
from softbeam.cli.texts import config_arguments, given_settings, normalize_argument
from softbeam.data.fasta import normalized
from softbeam.errors import UserError, check_range, check_threads, need
from softbeam.runtime import outputs
from softbeam.runtime.files import write_text
from softbeam.sampling.texts.settings import SamplingConfig

if TYPE_CHECKING:
    import torch

    from softbeam.reports.playground import beams, chains, recording, server
    from softbeam.training import runs
else:
    torch, runs = lazy("torch"), lazy("softbeam.training.runs")
    beams, chains = (
        lazy("softbeam.reports.playground.beams"),
        lazy("softbeam.reports.playground.chains"),
    )
    recording, server = (
        lazy("softbeam.reports.playground.recording"),
        lazy("softbeam.reports.playground.server"),
    )

NOT_OF_A_PAGE = ("lengths", "length_offset")  # cells of a text stay where they are
CHAINS = 3  # that are shown if no number is given
WIDEST = 8  # beam


def play_parser() -> Parser:
    """Make the parser of `softbeam play`."""
    arguments = parser(
        "play",
        "Serve a page, for a browser on this machine only, on which a run's soft beam sharpens as "
        "alpha is moved, and chains move over a text of a masked language model; or record either "
        "as an animated picture. Ctrl-C ends it.",
    )
    add = arguments.add_argument
    add("run", type=str, nargs="?", default=None, help="folder of a run, for its beams")
    add("--beam", type=int, default=3, help="beam size at first")
    add("--sentence", type=int, default=0, help="number of the dev sentence at first, from 1")
    add("--source", type=str, default="", help="a sentence of your own to begin with")
    model_arguments(arguments, required=False)
    add("--text", type=str, default="", help="the text at first; each [MASK] is a gap of one token")
    normalize_argument(arguments)
    config_arguments(arguments, skip=(*NOT_OF_A_PAGE, "chains"))
    add("--chains", type=int, default=CHAINS, help="Markov chains over the text")
    add("--port", type=int, default=0, help="port of the page; 0 is any that is free")
    add("--no-browser", action="store_true", help="print the address, and open no browser")
    record = "write an animated picture (.svg) of the beam or the chains instead; serve nothing"
    add("--record", type=str | None, default=None, help=record)
    steps = "steps of the chains that are recorded"
    add("--steps", type=int, default=60, help=steps)
    overwrite_argument(arguments)
    return arguments


def play(words: list[str]) -> int:
    """Run `softbeam play`."""
    parsed = play_parser().parse_args(as_lists(words, ("--anneal",)))
    check_range("--port", parsed.port, least=0, most=65535)
    check_range("--beam", parsed.beam, least=1, most=WIDEST)
    check_range("--chains", parsed.chains, least=1, most=WIDEST)
    check_range("--steps", parsed.steps, least=1, most=500)
    check_threads(parsed.threads)
    if parsed.run is None and parsed.mlm is None:
        raise UserError("give a RUN to see its beams, or --mlm NAME to see its chains, or both")
    config = SamplingConfig(**given_settings(parsed) | {"chains": parsed.chains})
    if parsed.record is not None:
        return record(parsed, config)
    need("tornado", "play")
    server.serve(
        server.playground(
            None if parsed.run is None else beam_views(parsed),
            None if parsed.mlm is None else chain_views(parsed, config),
        ),
        port=parsed.port,
        browser=not parsed.no_browser,
        say=lambda address: print(f"{address}\nCtrl-C ends it.", flush=True),
    )
    return 0


def record(parsed: Any, config: SamplingConfig) -> int:
    """Write an animated picture of a beam or of chains."""
    out = Path(parsed.record)
    if (parsed.run is None) == (parsed.mlm is None):
        raise UserError("--record: give either a RUN or --mlm NAME, not both")
    if out.suffix != ".svg":
        raise UserError(f"--record {out}: must end in .svg")
    read = [] if parsed.run is None else files_in(Path(parsed.run))
    with outputs.new_file(out, overwrite=parsed.overwrite, inputs=read):
        if parsed.mlm is None:
            text = recording.moving_beam(beam_views(parsed))
        else:
            text = recording.moving_chains(chain_views(parsed, config), steps=parsed.steps)
        write_text(out, text)
    print(out)
    return 0


def beam_views(parsed: Any) -> "beams.BeamViews":
    """Load the run whose beams are shown."""
    torch.set_num_threads(parsed.threads)
    run = runs.load_run(Path(parsed.run), device=parsed.device)
    options = {"k": parsed.beam, "source": parsed.source, "sentence": parsed.sentence}
    return beams.BeamViews(run, Path(parsed.run).name, **options)


def chain_views(parsed: Any, config: SamplingConfig) -> "chains.ChainViews":
    """Load the model whose chains are shown."""
    text = normalized(parsed.text) if parsed.normalize_sequence else parsed.text
    return chains.ChainViews(load_mlm(parsed), parsed.mlm, text, config)
