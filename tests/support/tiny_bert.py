"""Small masked LMs with random weights whose tokens are letters, in memory and as a folder."""

from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn

from softbeam.models.huggingface.masked import HfMaskedLM

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "<null_1>"]
LETTERS = list("ACDEFGHIKL")
VOCAB = [*SPECIALS, *LETTERS]
ROWS = len(VOCAB) + 3  # the embedding has rows that the tokenizer has no token for


def letter_tokenizer(**options) -> transformers.PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel({t: i for i, t in enumerate(VOCAB)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    given = {f"{name}_token": SPECIALS[i] for name, i in names.items()} | options
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **given)


SIZES = {
    "vocab_size": ROWS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
DISTILBERT = {"vocab_size": ROWS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
MARKS = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
FAMILIES = {
    "bert": lambda: transformers.BertConfig(**SIZES),
    "roberta": lambda: transformers.RobertaConfig(**SIZES),
    "electra": lambda: transformers.ElectraConfig(**SIZES, embedding_size=8),
    "albert": lambda: transformers.AlbertConfig(**SIZES, embedding_size=8),
    "esm": lambda: transformers.EsmConfig(
        **SIZES, mask_token_id=4, token_dropout=True, position_embedding_type="rotary"
    ),
    "distilbert": lambda: transformers.DistilBertConfig(**DISTILBERT, max_position_embeddings=40),
    "modernbert": lambda: transformers.ModernBertConfig(**SIZES, **MARKS),
    "convbert": lambda: transformers.ConvBertConfig(**SIZES, embedding_size=16),
    "fnet": lambda: transformers.FNetConfig(
        **{k: v for k, v in SIZES.items() if k != "num_attention_heads"}
    ),
}
UNPADDABLE = {"convbert", "fnet"}  # convolutions and Fourier transforms read padding


def small(family: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(FAMILIES[family]())
    for parameter in model.parameters():
        if parameter.dim() > 1:  # far from uniform, so that a mistake is seen
            nn.init.normal_(parameter, std=0.3)
    return model


def letter_mlm(dtype: torch.dtype = torch.float64) -> HfMaskedLM:
    return HfMaskedLM(small("bert").to(dtype), letter_tokenizer())


def write_letter_mlm(folder: Path) -> Path:
    small("bert").save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return folder


PIECES = [*SPECIALS[:5], "a", "cat", "en", "con", "##cat", "##ch", "##sj", "##-", ".", "-"]


def piece_mlm() -> HfMaskedLM:
    """A small masked LM in double precision whose tokens are pieces of words."""
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(PIECES)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": SPECIALS[i] for i, name in enumerate(("pad", "unk", "cls", "sep"))}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, mask_token="[MASK]", **names
    )
    return HfMaskedLM(small("bert").double(), tokenizer)
