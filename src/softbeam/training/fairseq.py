"""Convert published Mask-Predict checkpoints (fairseq) to runs, without fairseq.

Their dictionary begins with <s> <pad> </s> <unk> <mask>, texts of both sides end with </s>, which
counts for the length and is predicted like a word, and positions are counted from the number
after the padding's. The file is read with `weights_only`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softbeam.data.encoding import Codecs
from softbeam.data.readers import read_texts
from softbeam.data.tasks import Translation
from softbeam.data.vocabulary import Vocabulary, save_codec
from softbeam.errors import UserError
from softbeam.models.building import build
from softbeam.models.conversions import weights
from softbeam.models.specs import PublishedCmlm
from softbeam.objectives.masked import UniformMasking
from softbeam.runtime import outputs
from softbeam.runtime.environment import environment
from softbeam.runtime.files import LARGEST_TENSORS, read_input, require_writable, write_text
from softbeam.training.config import RunConfig, Stage, to_yaml
from softbeam.training.runs import (
    CONFIG,
    ENVIRONMENT,
    METRICS,
    SOURCE,
    SUMMARY,
    TARGET,
    WEIGHTS,
    content_of,
    save_weights,
)
from softbeam.training.searches import MaskPredict

State = Mapping[str, Tensor]

THEIRS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
PAD_ID = THEIRS.index("<pad>")
ARCHITECTURE = "bert_transformer_seq2seq"


def convert(
    checkpoint: Path, source_dict: Path, target_dict: Path, out: Path, *, overwrite: bool = False
) -> Path:
    """Write a folder that decodes and samples like any run of `masked-translation`.

    Args:
        checkpoint: fairseq's `checkpoint_best.pt`.
        source_dict: fairseq's `dict.SOURCE.txt`.
        target_dict: fairseq's `dict.TARGET.txt`.
        out: the folder.
        overwrite: replace a run that is in the folder.
    """
    state, args = read(checkpoint)
    source, target = vocabulary(source_dict), vocabulary(target_dict)
    require_writable(out)
    for name, side in (("encoder", source), ("decoder", target)):
        rows = len(state.get(f"{name}.embed_tokens.weight", ()))
        if rows != len(side):
            raise UserError(f"{checkpoint}: {rows} {name} embeddings, but {len(side)} tokens")
    try:
        config = RunConfig(
            data=Translation(subwords=0),
            model=shape(state, args),
            pretrain=Stage(objective=UniformMasking(), epochs=1),
            select=MaskPredict(),
        )
        model = build(config.model, Codecs(source, target))
        model.load_state_dict(renamed(state, config.model))
    except (UserError, KeyError, ValueError, TypeError, RuntimeError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError(f"{checkpoint} does not fit its arguments: {said[:300]}") from None
    read_files = (checkpoint, source_dict, target_dict)
    with outputs.folder(
        out,
        describe=content_of,
        inputs=read_files,
        overwrite=overwrite,
        hint="--overwrite replaces it",
    ) as folder:
        save_codec(source, folder / SOURCE)
        save_codec(target, folder / TARGET)
        save_weights(model, folder / WEIGHTS)
        write_text(folder / METRICS, "")
        write_text(folder / SUMMARY, json.dumps({"converted": str(checkpoint)}) + "\n")
        write_text(folder / ENVIRONMENT, json.dumps(environment(), indent=1) + "\n")
        write_text(folder / CONFIG, to_yaml(config))
    return out


def read(checkpoint: Path) -> tuple[State, Mapping[str, Any]]:
    """Read the weights and the arguments that they were trained with."""
    try:
        content = weights(read_input(checkpoint, LARGEST_TENSORS))
        state, args = content["model"], vars(content["args"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{checkpoint} is not a fairseq checkpoint: {error}") from None
    check_tensors(checkpoint, state)
    if not str(args.get("arch", "")).startswith(ARCHITECTURE):
        raise UserError(f"{checkpoint}: arch {args.get('arch')!r}, but {ARCHITECTURE} is needed")
    if "decoder.embed_out" in state:
        raise UserError(
            f"{checkpoint}: an output layer of its own; only shared ones can be converted"
        )
    return state, args


def check_tensors(checkpoint: Path, state: Any) -> None:
    """Raises UserError if the weights are not finite tensors by name."""
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise UserError(f"{checkpoint} is not a fairseq checkpoint: its model is a {kind}")
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or not bool(tensor.isfinite().all()):
            raise UserError(f"{checkpoint}: {name} is no tensor of finite numbers")


def vocabulary(path: Path) -> Vocabulary:
    """Read a dictionary file: softbeam's special tokens first, then the file's tokens."""
    lines = read_texts(path)
    for number, line in enumerate(lines, 1):
        if not line.rpartition(" ")[0]:
            raise UserError(f"{path}, line {number}: expected 'token count', found {line!r}")
    try:
        return Vocabulary([line.rpartition(" ")[0] for line in lines], PublishedCmlm.specials)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def shape(state: State, args: Mapping[str, Any]) -> PublishedCmlm:
    """Read the sizes that encoder and decoder must share; raises UserError if they differ."""
    sizes = {}
    for ours, theirs in (
        ("layers", "layers"),
        ("heads", "attention_heads"),
        ("hidden", "ffn_embed_dim"),
    ):
        pair = {int(args[f"{side}_{theirs}"]) for side in ("encoder", "decoder")}
        if len(pair) > 1:
            raise UserError(f"{theirs} differ: {sorted(pair)}; one number for both sides is needed")
        sizes[ours] = pair.pop()
    tables = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
    places = [len(state[name]) - PAD_ID - 1 for name in tables]
    return PublishedCmlm(
        width=int(args["encoder_embed_dim"]),
        longest=min(*places, len(state["encoder.embed_lengths.weight"])),
        dropout=float(args.get("dropout", 0.1)),
        norm_first=bool(args.get("encoder_normalize_before", False)),
        eps=1e-12,
        **sizes,
    )


def renamed(state: State, model: Any) -> dict[str, Tensor]:
    """Rename fairseq's weights to the names of softbeam's model."""
    order = [THEIRS.index(special) for special in PublishedCmlm.specials]
    weights = {}
    for side, prefix in (("encoder", "source_"), ("decoder", "")):
        table = state[f"{side}.embed_tokens.weight"]
        words = range(len(THEIRS), len(table))
        weights[f"{prefix}embed.weight"] = table[[*order, *words]]
        places = state[f"{side}.embed_positions.weight"][PAD_ID + 1 :]
        weights[f"{prefix}position.weight"] = places[: model.longest]
        for number in range(model.layers):
            theirs, ours = f"{side}.layers.{number}.", f"{side}.{number}."
            weights |= {ours + name: state_of for name, state_of in layer(state, theirs).items()}
        if model.norm_first:
            weights |= norm(state, f"{side}.layer_norm", f"{side}_norm")
    weights["length_embed.weight"] = state["encoder.embed_lengths.weight"][: model.longest]
    return weights


def layer(state: State, theirs: str) -> dict[str, Tensor]:
    """Rename one layer; fairseq's encoder numbers its normalizations, its decoder names them."""
    norms = {"self_attn_layer_norm": "attention_norm", "final_layer_norm": "hidden_norm"}
    if f"{theirs}layer_norms.0.gamma" in state:
        norms = {"layer_norms.0": "attention_norm", "layer_norms.1": "hidden_norm"}
    weights = attention(state, f"{theirs}self_attn", "attention")
    if f"{theirs}encoder_attn.in_proj_weight" in state:
        weights |= attention(state, f"{theirs}encoder_attn", "source")
        norms["encoder_attn_layer_norm"] = "source_norm"
    for their_name, our_name in norms.items():
        weights |= norm(state, theirs + their_name, our_name)
    for their_name, our_name in (("fc1", "hidden"), ("fc2", "back")):
        for part in ("weight", "bias"):
            weights[f"{our_name}.{part}"] = state[f"{theirs}{their_name}.{part}"]
    return weights


def attention(state: State, theirs: str, ours: str) -> dict[str, Tensor]:
    """Join queries, keys and values, which are one matrix in torch's attention."""
    weights = {}
    for part in ("weight", "bias"):
        query, key, value = state[f"{theirs}.in_proj_{part}"].chunk(3)
        weights[f"{ours}.query.{part}"] = query
        weights[f"{ours}.key_value.{part}"] = torch.cat([key, value])
        weights[f"{ours}.joined.{part}"] = state[f"{theirs}.out_proj.{part}"]
    return weights


def norm(state: State, theirs: str, ours: str) -> dict[str, Tensor]:
    return {f"{ours}.weight": state[f"{theirs}.gamma"], f"{ours}.bias": state[f"{theirs}.beta"]}
