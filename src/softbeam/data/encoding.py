"""Turn examples into token numbers."""

from collections.abc import Sequence
from typing import NamedTuple, cast

from softbeam.data.batches import Encoded
from softbeam.data.readers import Example
from softbeam.data.vocabulary import EOS, Codec


class Codecs(NamedTuple):
    """The vocabularies of both sides."""

    source: Codec
    target: Codec

    @property
    def eos(self) -> int | None:
        """The number of the target's end mark; None if outputs have no end mark."""
        return self.target.id(EOS)


def encode(examples: Sequence[Example], codecs: Codecs) -> list[Encoded]:
    """Turn examples into numbers; a side ends with the end mark if its vocabulary has one."""
    source_end, end = ([i for i in [codec.id(EOS)] if i is not None] for codec in codecs)
    return [
        Encoded(
            [*codecs.source.encode(e.source), *source_end],
            [*cast(list[int], codecs.target.encode(e.target)), *end],  # never with characters
        )
        for e in examples
    ]
