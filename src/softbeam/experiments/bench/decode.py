"""Speed of beam search against `generate` of transformers, and CTranslate2 as a yardstick in C++.

All of them search with the same Marian weights, drawn at random. Times are of the processor, and
ratios are medians over rounds in which the searches take turns.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from softbeam.errors import UserError
from softbeam.models.huggingface.seq2seq import HfSeq2Seq
from softbeam.search.decoders import LocallyNormalized
from softbeam.search.hard import beam_search
from softbeam.search.live import live_beam_search

PAD, EOS, FIRST = 0, 2, 3  # FIRST: the first token that is no special one
Search = Callable[[Tensor], list[list[int]]]  # sources -> outputs up to and with their end marks


class Case(NamedTuple):
    """Sentences at a time, and how readily outputs end: the bias of the end mark."""

    name: str
    batch: int
    end: float


CASES = (
    Case("1 sentence", 1, -1e4),
    Case("16 sentences", 16, -1e4),
    Case("64 sentences", 64, -1e4),
    Case("64 sentences, ending early", 64, 4.0),
)


def marian(vocab: int, width: int, layers: int, end: float) -> MarianMTModel:
    """A Marian model with random weights, far from uniform."""
    torch.manual_seed(0)
    sizes = {"layers": layers, "attention_heads": 4, "ffn_dim": 4 * width}
    sides: Any = {f"{side}_{n}": v for side in ("encoder", "decoder") for n, v in sizes.items()}
    special: Any = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}
    model = MarianMTModel(
        MarianConfig(
            vocab_size=vocab,
            d_model=width,
            max_position_embeddings=512,
            forced_eos_token_id=None,
            scale_embedding=True,
            **sides,
            **special,
        )
    ).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.06)
    model.final_logits_bias = torch.randn(1, vocab)
    model.final_logits_bias[0, EOS] = end
    model.generation_config = GenerationConfig(**special)
    return model


def searches(model: MarianMTModel, k: int, steps: int) -> dict[str, Search]:
    """The searches by name; CTranslate2 only where it is installed."""
    adapter = HfSeq2Seq(model)
    generates: Any = model  # by a mixin that types do not show

    def generate(source: Tensor) -> list[list[int]]:
        outputs = generates.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=k,
            max_new_tokens=steps,
            length_penalty=0.0,
            do_sample=False,
        )
        return cut(outputs[:, 1:])

    def live(source: Tensor) -> list[list[int]]:
        decoder, limits = LocallyNormalized(adapter(source)), torch.full((len(source),), steps)
        return cut(
            live_beam_search(decoder, k=k, lengths=limits, eos=EOS, stop="likely").tokens[:, 0]
        )

    def inside(source: Tensor) -> list[list[int]]:
        decoder, limits = LocallyNormalized(adapter(source)), torch.full((len(source),), steps)
        return cut(beam_search(decoder, k=k, lengths=limits, eos=EOS).tokens[:, 0])

    named: dict[str, Search] = {"generate": generate, "live": live, "beam": inside}
    return named | translators(model, k, steps)


def cut(tokens: Tensor) -> list[list[int]]:
    """Each row up to and with its first end mark."""
    rows: list[list[int]] = tokens.tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


def translators(model: MarianMTModel, k: int, steps: int) -> dict[str, Search]:
    """CTranslate2 with the same weights, in single precision and with 8-bit integers."""
    try:
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader
    except ImportError:
        return {}
    model.config.normalize_before = model.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(model)
    names = [str(i) for i in range(model.config.vocab_size)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.eos_token, spec.config.unk_token = str(EOS), "1"
    spec.config.decoder_start_token = str(PAD)

    def translator(kind: str) -> Search:
        with tempfile.TemporaryDirectory() as folder:
            spec.save(folder)
            translate = ctranslate2.Translator(
                folder, compute_type=kind, inter_threads=1, intra_threads=1
            )

        def search(source: Tensor) -> list[list[int]]:
            results = translate.translate_batch(
                [[str(i) for i in row] for row in source.tolist()],
                beam_size=k,
                max_decoding_length=steps,
                length_penalty=0.0,
                return_end_token=True,
            )
            return [[int(i) for i in result.hypotheses[0]] for result in results]

        return search

    spec.validate()
    return {f"ctranslate2 {kind}": translator(kind) for kind in ("float32", "int8")}


@torch.no_grad()
def run(
    *,
    repeats: int,
    vocab: int = 8000,
    width: int = 256,
    layers: int = 3,
    k: int = 5,
    steps: int = 32,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Processor seconds of each search in each case, and its speed relative to `generate`."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        model = marian(vocab, width, layers, case.end)
        source = torch.randint(FIRST, vocab, (case.batch, 20))
        named = searches(model, k, steps)
        outputs = {name: search(source) for name, search in named.items()}
        if outputs["live"] != outputs["generate"]:
            raise UserError(f"{case.name}: other outputs than those of generate")
        seconds: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(repeats):
            for name, search in named.items():
                started = time.process_time()
                search(source)
                seconds[name].append(time.process_time() - started)
        for name, times in seconds.items():
            pairs = zip(seconds["generate"], times, strict=True)
            rows.append(
                {
                    "case": case.name,
                    "search": name,
                    "seconds": round(statistics.median(times), 4),
                    "ratio": round(statistics.median(base / own for base, own in pairs), 2),
                    "same": round(share(outputs[name], outputs["generate"]), 3),
                    "tokens": sum(map(len, outputs[name])),
                }
            )
            progress(
                f"{case.name:28} {name:20} {rows[-1]['seconds']:8.3f} s  "
                f"{rows[-1]['ratio']:5.2f} x generate  same outputs {rows[-1]['same']:.0%}"
            )
    return {"bench": "decode", "vocab": vocab, "width": width, "layers": layers, "k": k} | {
        "steps": steps,
        "rows": rows,
    }


def share(some: list[list[int]], others: list[list[int]]) -> float:
    """Share of outputs that are equal."""
    return statistics.fmean(a == b for a, b in zip(some, others, strict=True))
