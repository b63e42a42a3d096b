"""Rewards of texts as costs: against the metrics of token numbers, which share no text."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from softbeam.cli import main
from softbeam.errors import UserError
from softbeam.models.specs import Lstm
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.losses.texts import Texts, rewarded
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.runtime.allowed import allowing
from softbeam.training.api import train
from softbeam.training.config import RunConfig, Stage, from_text, to_json, to_yaml
from softbeam.training.huggingface import search_aware_loss
from softbeam.training.rewards import own_function
from softbeam.training.runs import load_run
from support.hf_toys import gpt2, marian, random
from support.objective_toys import batch_of, build, call

SEEN: list[dict] = []  # what a reward was called with


def distance(a: list[str], b: list[str]) -> int:
    """The edit distance, row by row."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def few_edits(prompts, completions, **columns):
    """As TRL calls it: minus the edits for each word of the reference."""
    SEEN.append({"prompts": prompts, "completions": completions} | columns)
    pairs = zip(completions, columns["references"], strict=True)
    return [-distance(a.split(), b.split()) / len(b.split()) for a, b in pairs]


def numbers(rows) -> list[str]:
    return [" ".join(map(str, row)) for row in rows]


class Numbers:
    """A tokenizer whose texts are the numbers of all tokens."""

    def batch_decode(self, rows, *, skip_special_tokens):
        return numbers(rows)


def gradients(total, model):
    weights = [p for p in model.parameters() if p.requires_grad]
    parts = torch.autograd.grad(total, weights, allow_unused=True)
    return [part for part in parts if part is not None]


VARIANTS = {
    "beam": (MinimumRisk, {"n": 5, "finish": True, "extra": 2}),
    "samples": (MinimumRisk, {"n": 4, "candidates": "sample", "include_gold": True}),
    "greedy": (Reinforce, {"baseline": "greedy", "finish": True}),
    "running": (Reinforce, {"baseline": "running", "cross_entropy": 0.3}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_reward_is_the_equivalent_metric(name):
    kind, knobs = VARIANTS[name]
    texts = Texts(lambda source: numbers(source.tolist()), numbers)
    ours = kind(reward=few_edits, **knobs).reading(texts, own_function)
    results = []
    for objective in (ours, kind(metric="edit", **knobs)):
        model = build()
        loss = call(objective, model, batch_of([4, 3, 5]))
        results.append([loss.total, *gradients(loss.total, model)])
    torch.testing.assert_close(*results)
    assert results[0][1].abs().max() > 0


@pytest.mark.parametrize("make", [marian, gpt2])
@pytest.mark.parametrize("prefix", [0, 1])
def test_a_reward_trains_hugging_face_models(make, prefix):
    model = random(make)
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    inputs = {"input_ids": ids, "labels": torch.tensor([[7, 3, 4], [9, 5, 6]])}
    if make is gpt2:
        prefix, inputs["labels"] = 0, torch.tensor([[-100, 4, 5], [-100, 7, 8]])
    results = []
    for cost in ({"reward": few_edits}, {"metric": "edit"}):
        SEEN.clear()
        objective = MinimumRisk(n=3, include_gold=True, sharpness=0.1, **cost)
        knobs = {"tokenizer": Numbers(), "prefix": prefix}
        total = search_aware_loss(model, inputs, objective, **knobs).total
        results.append([total, *gradients(total, model)])
        if objective.reward:
            sources = ids if make is marian else ids[:, :1]
            assert SEEN[0]["prompts"] == [t for t in numbers(sources.tolist()) for _ in range(4)]
            kept = [[i for i in row if i >= 0][prefix:] for row in inputs["labels"].tolist()]
            assert SEEN[0]["references"][::4] == numbers(kept)
    torch.testing.assert_close(*results)
    assert max(part.abs().max() for part in results[0][1:]) > 1e-3


EXAMPLES = [(f"the {n} {v}", f"D N {v[0]}") for n in ("dog", "cat") for v in ("runs", "sees")]


@pytest.mark.slow
def test_training_with_a_reward_is_training_with_the_metric(tmp_path):
    """A label is a word; the file names the function, and nothing needs it to load the run."""
    weights = []
    for name, cost in (("reward", {"reward": few_edits}), ("metric", {"metric": "edit"})):
        SEEN.clear()
        train(
            "tagging",
            tmp_path / name,
            examples=EXAMPLES,
            model=Lstm(embedding=4, hidden=4),
            pretrain=Stage(objective=CrossEntropy(), epochs=1, lr=0.05, tokens=20),
            finetune=Stage(objective=MinimumRisk(n=3, **cost), epochs=2, lr=0.05, tokens=20),
            quiet=True,
        )
        if name == "reward":
            assert {p for call in SEEN for p in call["prompts"]} <= {a for a, _ in EXAMPLES}
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert f"reward: {__name__}:few_edits" in (tmp_path / "reward" / "config.yaml").read_text()


def test_files_name_rewards_and_name_none_that_is_not_allowed(tmp_path, monkeypatch):
    config = RunConfig(finetune=Stage(objective=MinimumRisk(reward=few_edits)))
    again = from_text(to_yaml(config))
    assert again == config and from_text(to_json(config)) == config
    assert again.finetune.objective.reward == f"{__name__}:few_edits"
    plain = RunConfig(finetune=Stage(objective=MinimumRisk()))
    assert "reward" not in to_json(plain)  # cells of before keep their identities
    texts = Texts(lambda source: numbers(source.tolist()), numbers)
    named = MinimumRisk(reward="operator:neg")
    with pytest.raises(UserError, match="runs code of operator.* --allow-module operator"):
        named.reading(texts, own_function)
    with allowing(["operator"]):
        assert named.reading(texts, own_function).read[1](3) == -3
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "witness.py").write_text("def reward(completions): ...")
    for name in ("witness.reward", "witness:reward"):
        read = from_text(to_yaml(config).replace(f"{__name__}:few_edits", name))
        assert read.finetune.objective.reward == name and "witness" not in sys.modules
    with pytest.raises(UserError, match="is not a run configuration"):
        from_text(to_yaml(config).replace(f"{__name__}:few_edits", "{class_path: builtins.print}"))


@pytest.mark.parametrize(
    "reward, message",
    [
        (lambda completions: [1.0], "1 numbers for 2 completions"),
        (lambda completions, **columns: [float("nan")] * 2, "nan; must be a finite number"),
        (lambda prompts, completions: [len(x) / 0 for x in completions], "ZeroDivisionError"),
        (lambda completions: [None, 1.0], "TypeError"),
    ],
)
def test_wrong_rewards_are_named(reward, message):
    columns = {"prompts": ["a", "b"], "completions": ["c", "d"], "references": ["e", "f"]}
    with pytest.raises(UserError, match=f"reward .*<lambda>: .*{message}"):
        rewarded(reward, columns)


@pytest.mark.slow
def test_the_command_line_names_a_reward_and_allows_its_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_rewards.py").write_text(
        "def exact(completions, references):\n"
        "    return [float(c == r) for c, r in zip(completions, references)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = tmp_path / "data.conll"
    data.write_text("".join(f"a X\n{word} Y\n\n" for word in "bcdefgh"))
    words = ["train", "tagging", "--data.train", str(data), "--data.dev", str(data), "--quiet"]
    words += ["--model.hidden", "4", "--model.embedding", "4", "--out", str(tmp_path / "run")]
    words += ["--pretrain.epochs", "1", "--finetune.epochs", "1", "--objective", "minimum-risk"]
    words += ["--finetune.objective.reward", "own_rewards:exact"]
    assert main(words) == 2
    assert "runs code of own_rewards; if you trust it" in capsys.readouterr().err
    assert main([*words, "--allow-module", "own_rewards"]) == 0
    assert load_run(tmp_path / "run").config.finetune.objective.reward == "own_rewards:exact"
