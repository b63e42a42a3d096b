"""Detokenization against a tokenizer of a few lines, which shares no rule with it."""

import re

import pytest

from softbeam.data.detokenize import detokenize, is_tokenized

TEXTS = [
    "A man, a plan (and a canal): that's all; isn't it?",
    'She said "no, thanks" and left the "old" house.',
    "Ein Mann, der 3,5% verdient, geht „nach Hause“ nicht.",
    "L'homme qui n'a pas d'eau [ici] rit!",
    "It costs $5 or £4, doesn't it...",
    "He said “yes” twice.",
    "¿Qué pasa? ¡Nada!",
    "well-known facts",
]


def tokenized(text: str) -> list[str]:
    """Part marks and clitics from words, as Moses and the Penn treebank do."""
    parted = re.sub(r"(\.\.\.|(?<!\d)[.,]|[.,](?!\d)|[;:!?()\[\]\"„“”¿¡%$£])", r" \1 ", text)
    parted = re.sub(r"(n't|'s)\b", r" \1", parted)
    return re.sub(r"\b([ldnLDN]')(?=\w{2,})", r"\1 ", parted).split()


@pytest.mark.parametrize("text", TEXTS)
def test_tokenization_is_undone(text):
    tokens = tokenized(text)
    assert detokenize(tokens) == text
    assert " ".join(tokens) != text or "-" in text, "nothing was tokenized"


def test_the_marks_of_moses_are_undone():
    assert detokenize("a well @-@ known &quot; fact &quot; don &apos;t &amp;".split()) == (
        'a well-known "fact" don\'t &'
    )


def test_only_tokenized_text_has_marks_of_its_own():
    assert is_tokenized([["ja"], ["Ein", "Hund", "."]])
    assert not is_tokenized([["Ein", "Hund."], ["Vraiment", "?"]]), "French has spaces before ?"
