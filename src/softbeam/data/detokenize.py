"""Join the tokens of tokenized text as people write them."""

import html
import re
from collections.abc import Sequence

BEFORE = re.compile(  # joined to the token before it
    r"[.,;:!?%)\]}…’”»›]+|['’](?:s|S|m|d|re|ve|ll|t)|n['’]t"
)
AFTER = re.compile(  # joined to the token after it
    r"[(\[{¿¡‚«‹$£€#]+|(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)['’]", re.IGNORECASE
)
TURNING = {'"', "“"}
ALONE = {".", ","}  # written text never has them between spaces


def is_tokenized(texts: Sequence[Sequence[str]]) -> bool:
    """Tell whether a text is tokenized: somewhere a full stop or comma is a token of its own."""
    return any(token in ALONE for tokens in texts for token in tokens)


def detokenize(tokens: Sequence[str]) -> str:
    """Join tokens to a text: no space before a comma, after a bracket or inside of quotes.

    Moses's marks (`&apos;`, `@-@`) are undone. Straight quotes open and close in turn, and so does
    “, which closes what „ opens in German.
    """
    text, glue, quoted = "", True, False
    for token in (html.unescape(token) for token in tokens):
        hyphen = token in ("@-@", "@/@")
        closing = token in TURNING and quoted
        opening = token == "„" or (token in TURNING and not quoted)
        quoted = opening or (quoted and not closing)
        joined = glue or hyphen or closing or BEFORE.fullmatch(token)
        text += ("" if joined else " ") + (token[1] if hyphen else token)
        glue = bool(hyphen or opening or AFTER.fullmatch(token))
    return text
