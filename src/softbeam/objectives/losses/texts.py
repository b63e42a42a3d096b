"""Costs of outputs as texts: rewards as TRL has them, and the word error rate."""

import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from softbeam.errors import UserError
from softbeam.objectives.functions import FunctionName, Reward
from softbeam.objectives.losses.risk import edit_rate
from softbeam.types import Batch, Hypotheses


class Texts(NamedTuple):
    """How the numbers of a batch become texts."""

    prompts: Callable[[Tensor], list[str]]  # of sources
    outputs: Callable[[list[list[int]]], list[str]]  # of rows of target tokens


def text_costs(
    texts: Texts, reward: Reward, outputs: Hypotheses, batch: Batch
) -> Float[Tensor, "batch n"]:
    """Compute the negative reward of each output; unknown target tokens are not in references."""
    n = outputs.tokens.shape[1]
    paths, sizes = outputs.tokens.flatten(0, 1).tolist(), outputs.lengths.flatten().tolist()
    targets = zip(batch.target.tolist(), batch.mask.tolist(), strict=True)
    gold = [[token for token, real in zip(*pair, strict=True) if real] for pair in targets]
    columns = {
        "prompts": repeated(texts.prompts(batch.source), n),
        "completions": texts.outputs([p[:size] for p, size in zip(paths, sizes, strict=True)]),
        "references": repeated(texts.outputs(gold), n),
    }
    rewards = rewarded(reward, columns)
    return -outputs.scores.new_tensor(rewards).unflatten(0, (-1, n))


def repeated(values: list[str], n: int) -> list[str]:
    """Each value n times."""
    return [value for value in values for _ in range(n)]


def rewarded(reward: Reward, columns: dict[str, list[str]]) -> list[float]:
    """Call a reward with those of the columns that it takes.

    Raises UserError if it fails, or returns other than a finite number for each completion.
    """
    name, count = FunctionName.of(reward), len(columns["completions"])
    parameters = inspect.signature(reward).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        columns = {p.name: columns[p.name] for p in parameters if p.name in columns}
    try:
        rewards = [float(value) for value in reward(**columns)]
    except Exception as error:  # the user's own code, which may fail in any way
        raise UserError(f"reward {name}: {error!r}") from error
    if len(rewards) != count:
        raise UserError(f"reward {name}: {len(rewards)} numbers for {count} completions")
    for value in rewards:
        if not math.isfinite(value):
            raise UserError(f"reward {name}: {value}; must be a finite number")
    return rewards


def word_accuracy(completions: list[str], references: list[str]) -> list[float]:
    """The negative word error rate: edits of words for each word of the reference."""
    pairs = zip(completions, references, strict=True)
    return [-edit_rate(ours.split(), gold.split()) for ours, gold in pairs]
