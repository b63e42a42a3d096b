"""A small BERT with random weights whose tokens are letters, in memory and as a folder."""

from pathlib import Path

import torch

from models.huggingface.test_masked import letter_tokenizer, small
from softbeam.models.huggingface.masked import HfMaskedLM


def letter_mlm(dtype: torch.dtype = torch.float64) -> HfMaskedLM:
    return HfMaskedLM(small("bert").to(dtype), letter_tokenizer())


def write_letter_mlm(folder: Path) -> Path:
    small("bert").save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return folder
