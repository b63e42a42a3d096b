"""Convert published encoder-decoders to folders without running any of their code."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy
from softbeam.models.conversions import Read, State, renamed, save, weights

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    import torch
    import transformers
    from safetensors import torch as safetensors
    from tokenizers import models, normalizers, pre_tokenizers, processors

    from softbeam.models import gru, text_seq2seq
else:
    np, torch, transformers = lazy("numpy"), lazy("torch"), lazy("transformers")
    tokenizers, models = lazy("tokenizers"), lazy("tokenizers.models")
    normalizers, processors = lazy("tokenizers.normalizers"), lazy("tokenizers.processors")
    pre_tokenizers, safetensors = lazy("tokenizers.pre_tokenizers"), lazy("safetensors.torch")
    gru, text_seq2seq = lazy("softbeam.models.gru"), lazy("softbeam.models.text_seq2seq")

MARKS = ["<PAD>", "<SOS>", "<EOS>", "<SKIP>"]  # SKIP: a residue outside of the variable region
RESIDUES = [*MARKS, *"ACDEFGHIKLMNPQRSTVWXY"]
NUMBERS = [*MARKS, *map(str, range(1, 129)), "X", "H", "L", "K"]  # X: an insertion; then the chain

LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
STRESSED = [f"{vowel}{stress}" for vowel in VOWELS for stress in range(3)]
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *sorted([*STRESSED, *CONSONANTS, "UW"])]
LONGEST_WORD = 20  # phonemes that the package decodes at most


def anarcii(inside: str) -> Callable[[Read, Path], None]:
    """Make the conversion of an ANARCII model to Marian, with its learned positions.

    Args:
        inside: the path of the checkpoint in the wheel, without .pt and .json.
    """

    def convert(read: Read, folder: Path) -> None:
        sizes = json.loads(read(f"{inside}.json"))
        state = marian_names(weights(read(f"{inside}.pt")))
        width, longest = sizes["HID_DIM"], len(state["model.encoder.embed_positions.weight"])
        sides: dict[str, Any] = {"static_position_embeddings": False}  # kept by the configuration
        for side in ("encoder", "decoder"):
            sides |= {f"{side}_layers": sizes["LAYERS"], f"{side}_attention_heads": sizes["HEADS"]}
            sides[f"{side}_ffn_dim"] = 4 * width
        config = transformers.MarianConfig(
            vocab_size=len(RESIDUES),
            decoder_vocab_size=len(NUMBERS),
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            d_model=width,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=longest,
            dropout=sizes["DROPOUT"],
            attention_dropout=sizes["DROPOUT"],
            activation_dropout=sizes["DROPOUT"],
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            forced_eos_token_id=None,
            **sides,
        )
        model: Any = transformers.MarianMTModel(config)
        model._keys_to_ignore_on_save = set()  # Marian leaves out positions, which it computes
        model.generation_config = transformers.GenerationConfig(
            pad_token_id=0, eos_token_id=2, decoder_start_token_id=1, max_length=longest
        )
        save(model, state, folder)
        unusual = normalizers.Replace(tokenizers.Regex("[BJOUZ]"), "X")
        marks = {"pad": "<PAD>", "bos": "<SOS>", "eos": "<EOS>"}
        source = word_level(RESIDUES, "<SOS> $A <EOS>", marks, letters=unusual, limit=longest)
        source.save_pretrained(folder)
        target = word_level(NUMBERS, "$A <EOS>", marks, limit=longest)
        target.save_pretrained(folder / text_seq2seq.TARGET)

    return convert


def marian_names(state: State) -> State:
    """Rename the tensors of an ANARCII model, and split queries, keys and values."""
    names = renamed(
        state,
        {
            "encoder": "model.encoder",
            "decoder": "model.decoder",
            "tok_embedding": "embed_tokens",
            "pos_embedding": "embed_positions",
            "self_attention.multihead_attn": "self_attn",
            "encoder_attention.multihead_attn": "encoder_attn",
            "enc_attn_layer_norm": "encoder_attn_layer_norm",
            "ff_layer_norm": "final_layer_norm",
            "positionwise_feedforward.fc_1": "fc1",
            "positionwise_feedforward.fc_2": "fc2",
            "model.decoder.fc_out.weight": "lm_head.weight",
        },
    )
    parts = {}
    for key, value in names.items():
        before, together, kind = key.partition(".in_proj_")
        if together:
            for part, third in zip("qkv", value.chunk(3), strict=True):
                parts[f"{before}.{part}_proj.{kind}"] = third.contiguous()
        else:
            parts[key] = value
    parts["final_logits_bias"] = parts.pop("model.decoder.fc_out.bias")[None]
    return parts


def g2p(inside: str) -> Callable[[Read, Path], None]:
    """Make the conversion of a GRU encoder-decoder in a numpy archive.

    Args:
        inside: the path of the archive in the wheel.
    """

    def convert(read: Read, folder: Path) -> None:
        arrays = np.load(io.BytesIO(read(inside)), allow_pickle=False)
        state = {"source_embed.weight": arrays["enc_emb"], "embed.weight": arrays["dec_emb"]}
        for side, short in (("encoder", "enc"), ("decoder", "dec")):
            for kind, letter in (("weight", "w"), ("bias", "b")):
                for of in ("ih", "hh"):
                    state[f"{side}.{kind}_{of}_l0"] = arrays[f"{short}_{letter}_{of}"]
        state |= {"output.weight": arrays["fc_w"], "output.bias": arrays["fc_b"]}
        sizes = {
            "source_vocab": len(LETTERS),
            "target_vocab": len(PHONEMES),
            "width": state["embed.weight"].shape[1],
            "start": PHONEMES.index("<s>"),
        }
        model = gru.GruSeq2Seq(**sizes)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        safetensors.save_model(model, str(folder / text_seq2seq.WEIGHTS))
        sizes |= {"eos": PHONEMES.index("</s>"), "longest": LONGEST_WORD}
        (folder / text_seq2seq.GRU).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        marks = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}
        lower = normalizers.Lowercase()
        word_level(LETTERS, "$A </s>", marks, letters=lower).save_pretrained(folder)
        target = word_level(PHONEMES, "$A </s>", marks | {"bos": "<s>"})
        target.save_pretrained(folder / text_seq2seq.TARGET)

    return convert


def word_level(
    vocab: Sequence[str],
    template: str,
    marks: dict[str, str],
    *,
    letters: Any = None,
    limit: int | None = None,
) -> Any:
    """Make a tokenizer of known tokens, apart by spaces; without unk, others are an error.

    Args:
        vocab: all tokens.
        template: what stands around a text, `$A`.
        marks: special tokens by role: pad, unk, bos, eos.
        letters: normalizer of a text whose tokens are letters, without spaces between them.
        limit: the largest number of tokens.
    """
    index = {token: i for i, token in enumerate(vocab)}
    unknown = {"unk_token": marks["unk"]} if "unk" in marks else {}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(index, **unknown))
    if letters is not None:
        tokenizer.normalizer = letters
        tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    framed = [token for token in template.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, index[token]) for token in framed]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **({} if limit is None else {"model_max_length": limit}),
        **{f"{role}_token": token for role, token in marks.items()},
    )
