"""Folders of small Hugging Face encoders with random weights, and taggers on top of them."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from softbeam.data.encoding import Codecs
from softbeam.data.vocabulary import Vocabulary
from softbeam.models.huggingface.words import read_pieces
from softbeam.models.specs import HfEncoder

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "dog", "cat", "run", "sleep", "##s", "##ing", "un", "##known", "."]
LETTERS = [letter for c in "abcdefghijklmnopqrstuvwxyz" for letter in (c, f"##{c}")]
PIECES = [*SPECIALS, *WORDS, *[letter for letter in LETTERS if letter not in WORDS]]
SIZES = {
    "vocab_size": len(PIECES),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
}
LABELS = Vocabulary(["D", "N", "V"])


def word_pieces() -> transformers.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def byte_pairs() -> transformers.PreTrainedTokenizerFast:
    """As RoBERTa's: a word is written with the space before it."""
    letters = ["Ġ", *sorted({*pre_tokenizers.ByteLevel.alphabet()} - {"Ġ"})][: len(PIECES) - 5]
    vocab = {piece: i for i, piece in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    )


def write_encoder(folder: Path, kind: str = "Bert", tokenizer=None, sizes=SIZES) -> Path:
    """Write an encoder far from its initial weights, so that a mistake is seen."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = getattr(transformers, f"{kind}Model")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (tokenizer or word_pieces()).save_pretrained(folder)
    return folder


def tagger(folder: Path, **options) -> tuple[torch.nn.Module, Codecs]:
    """A tagger on an encoder, in float64 and without dropout."""
    given = {"hidden": 5, "label_embedding": 4, "dropout": 0.0} | options
    spec = HfEncoder(name=str(folder), **given)
    codecs = Codecs(read_pieces(str(folder)), LABELS)
    torch.manual_seed(1)
    model = spec.build_for(codecs)
    spec.initialize(model, codecs, {})
    return model.double().eval(), codecs


def change_config(folder: Path, **values) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
