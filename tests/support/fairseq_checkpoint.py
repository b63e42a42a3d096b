"""A small Mask-Predict checkpoint in fairseq's key layout, with random weights."""

import argparse
from pathlib import Path

import torch

WIDTH, HEADS, HIDDEN, LAYERS, PLACES = 8, 2, 12, 2, 10
SOURCE, TARGET = ["der", "Hund", "lauft", "."], ["the", "dog", "runs", ".", "fast"]


def random_state(norm_first: bool) -> dict[str, torch.Tensor]:
    """Every key of `bert_transformer_seq2seq` with shared embeddings of the target's two ends."""
    shapes = {"encoder.version": (1,), "decoder.version": (1,)}
    for side, words in (("encoder", SOURCE), ("decoder", TARGET)):
        shapes[f"{side}.embed_tokens.weight"] = (5 + len(words), WIDTH)
        shapes[f"{side}.embed_positions.weight"] = (PLACES + 2, WIDTH)
        for n in range(LAYERS):
            layer = f"{side}.layers.{n}."
            norms = ["layer_norms.0", "layer_norms.1"]
            attentions = ["self_attn"]
            if side == "decoder":
                attentions.append("encoder_attn")
                norms = ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]
            for name in attentions:
                shapes[f"{layer}{name}.in_proj_weight"] = (3 * WIDTH, WIDTH)
                shapes[f"{layer}{name}.in_proj_bias"] = (3 * WIDTH,)
                shapes[f"{layer}{name}.out_proj.weight"] = (WIDTH, WIDTH)
                shapes[f"{layer}{name}.out_proj.bias"] = (WIDTH,)
            for name in norms:
                shapes |= {f"{layer}{name}.{part}": (WIDTH,) for part in ("gamma", "beta")}
            shapes[f"{layer}fc1.weight"], shapes[f"{layer}fc1.bias"] = (HIDDEN, WIDTH), (HIDDEN,)
            shapes[f"{layer}fc2.weight"], shapes[f"{layer}fc2.bias"] = (WIDTH, HIDDEN), (WIDTH,)
        if norm_first:
            shapes |= {f"{side}.layer_norm.{part}": (WIDTH,) for part in ("gamma", "beta")}
    shapes["encoder.embed_lengths.weight"] = (PLACES, WIDTH)
    rng = torch.Generator().manual_seed(0)
    return {k: 0.5 * torch.randn(shape, generator=rng) for k, shape in shapes.items()}


def arguments(norm_first: bool, **changed) -> argparse.Namespace:
    sizes = {"embed_dim": WIDTH, "layers": LAYERS, "attention_heads": HEADS}
    sizes |= {"ffn_embed_dim": HIDDEN, "normalize_before": norm_first}
    both = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}
    return argparse.Namespace(
        **{"arch": "bert_transformer_seq2seq", "dropout": 0.3} | both | changed
    )


def write_checkpoint(folder: Path, state=None, args=None) -> list[str]:
    content = {"model": random_state(False) if state is None else state}
    torch.save(content | {"args": args or arguments(False)}, folder / "checkpoint.pt")
    for name, words in (("de", SOURCE), ("en", TARGET)):
        (folder / f"dict.{name}.txt").write_text("".join(f"{word} 7\n" for word in words))
    words = ["models", "convert", str(folder / "checkpoint.pt")]
    words += ["--source-dict", str(folder / "dict.de.txt")]
    return [*words, "--target-dict", str(folder / "dict.en.txt"), "--out", str(folder / "run")]
