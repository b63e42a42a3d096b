"""Settings of `softbeam train masked-lm`: a frozen dataclass, whose fields are its flags."""

from dataclasses import dataclass

from softbeam.data.texts import Form, Units
from softbeam.errors import LARGEST_SEED, UserError, check_range


@dataclass(frozen=True, kw_only=True)
class MlmConfig:
    """Data, network and training of a masked language model.

    Args:
        train: file of texts, one on a line, or FASTA; plain or .gz
        dev: file of texts that the model is scored on; a tenth of --train if not given
        form: plain (15 % of tokens are hidden, as BERT does), diffusion (any number of them,
            weighted as masked diffusion models are) or hollow (one pass scores every token)
        units: what tokens are; characters, or words between spaces
        width: width of the embeddings and of each layer
        layers: number of layers
        heads: heads of each attention
        longest: largest number of tokens of a text; longer texts are cut into pieces
        dropout: dropout while training
        updates: number of updates
        batch: texts of an update
        lr: largest learning rate
        seed: seed of the first weights and of all random numbers
    """

    train: str | None = None
    dev: str | None = None
    form: Form = "plain"
    units: Units = "characters"
    width: int = 128
    layers: int = 4
    heads: int = 4
    longest: int = 256
    dropout: float = 0.1
    updates: int = 2000
    batch: int = 32
    lr: float = 2e-3
    seed: int = 1

    def __post_init__(self) -> None:
        for name, most in (("width", 10**4), ("layers", 100), ("heads", 100), ("longest", 10**5)):
            check_range(f"--{name}", getattr(self, name), least=1, most=most)
        check_range("--updates", self.updates, least=1, most=10**8)
        check_range("--batch", self.batch, least=1, most=10**5)
        check_range("--dropout", self.dropout, least=0, below=1)
        check_range("--lr", self.lr, above=0, most=10)
        check_range("--seed", self.seed, least=0, most=LARGEST_SEED)
        if self.width % self.heads:
            raise UserError(f"--heads {self.heads}: must divide the width, {self.width}")
