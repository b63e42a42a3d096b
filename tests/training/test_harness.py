"""A model of lm-eval: a local task without network, whose scores are those of `softbeam.score`."""

import json
import math

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import softbeam
from softbeam.errors import UserError
from support.tiny_bert import VOCAB, letter_mlm

DOCS = [
    {"before": "ACD", "choices": ["EF", "KL"], "answer": 0},
    {"before": "LK", "choices": ["A", "CC"], "answer": 1},
    {"before": "", "choices": ["DE", "HI"], "answer": 1},
]
TASK = """
task: letters_LAW
dataset_path: json
dataset_kwargs:
  data_files: {test: FILE}
  cache_dir: CACHE
test_split: test
output_type: multiple_choice
doc_to_text: "{{before}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def mlm():
    return letter_mlm()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "letters.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    for law in ("pseudo", "chain-rule"):
        text = TASK.replace("FILE", str(folder / "letters.jsonl"))
        text = text.replace("CACHE", str(folder / "cache")).replace("LAW", law)
        (folder / f"{law}.yaml").write_text(text)
    return TaskManager(include_path=str(folder), include_defaults=False)


def wanted(mlm, law: str, before: str, after: str) -> float:
    """By `softbeam.score`; the tokens of these models are letters."""
    energy = "chain-rule" if law == "chain-rule" else "local"
    (scored,) = softbeam.score(mlm, before + after, energy=energy)
    return scored.score if law == "joint" else sum(scored.scores[len(before) :])


@pytest.mark.slow
@pytest.mark.parametrize("law", ["pseudo", "chain-rule"])
def test_a_local_task_has_the_scores_of_softbeam(mlm, tasks, law):
    model = softbeam.hf.eval_model(mlm, law=law)
    name = f"letters_{law}"
    results = lm_eval.simple_evaluate(
        model=model, tasks=[name], task_manager=tasks, bootstrap_iters=0, log_samples=True
    )
    rows = sorted(results["samples"][name], key=lambda row: row["doc_id"])
    right = []
    for doc, row in zip(DOCS, rows, strict=True):
        scores = [float(each[0][0]) for each in row["resps"]]
        expected = [wanted(mlm, law, doc["before"], choice) for choice in doc["choices"]]
        assert scores == pytest.approx(expected, abs=1e-12)
        right.append(expected.index(max(expected)) == doc["answer"])
    assert results["results"][name]["acc,none"] == pytest.approx(sum(right) / len(right))


def plain(mlm, text: str, site: int, hidden) -> torch.Tensor:
    """log-probabilities at a position of the model itself."""
    ids = [2, *(VOCAB.index(letter) for letter in text), 3]
    ids = [4 if i - 1 in hidden else token for i, token in enumerate(ids)]
    with torch.no_grad():
        return mlm.model(input_ids=torch.tensor([ids])).logits[0, 1 + site].log_softmax(-1)


def test_scores_are_those_of_plain_loops(mlm):
    request = Instance("loglikelihood", {}, ("ACD", "EF"), 0)
    letters = torch.tensor([VOCAB.index(letter) for letter in "ACDEFGHIKL"])
    ((pseudo, greedy),) = softbeam.hf.eval_model(mlm).loglikelihood([request])
    each = [float(plain(mlm, "ACDEF", i, [i])[VOCAB.index("ACDEF"[i])]) for i in (3, 4)]
    assert pseudo == pytest.approx(sum(each), abs=1e-9)
    ((chain, _),) = softbeam.hf.eval_model(mlm, law="chain-rule").loglikelihood([request])
    each = []
    for i in (3, 4):
        log_p = plain(mlm, "ACDEF", i, range(i, 5))
        each.append(float(log_p[VOCAB.index("ACDEF"[i])] - log_p[letters].logsumexp(0)))
    assert chain == pytest.approx(sum(each), abs=1e-9)
    best = "".join(
        "ACDEFGHIKL"[int(plain(mlm, "ACDEF", i, [3, 4])[letters].argmax())] for i in (3, 4)
    )
    again = Instance("loglikelihood", {}, ("ACD", best), 0)
    assert not greedy and softbeam.hf.eval_model(mlm).loglikelihood([again])[0][1]


def test_joint_scores_compare_as_fillings_do(mlm):
    model = softbeam.hf.eval_model(mlm, law="joint")
    share = {f.text: f.share for f in softbeam.infill(mlm, "AC[MASK][MASK]", method="enumerate")}
    pairs = [Instance("loglikelihood", {}, ("AC", after), 0) for after in ("EF", "KL")]
    (first, _), (second, _) = model.loglikelihood(pairs)
    assert first - second == pytest.approx(math.log(share["ACEF"] / share["ACKL"]), abs=1e-9)


def test_whole_texts_and_what_is_refused(mlm):
    rolling = Instance("loglikelihood_rolling", {}, ("ACDEF",), 0)
    for law in ("pseudo", "chain-rule"):
        (total,) = softbeam.hf.eval_model(mlm, law=law).loglikelihood_rolling([rolling])
        assert total == pytest.approx(wanted(mlm, law, "", "ACDEF"), abs=1e-12)
    with pytest.raises(UserError, match="generate_until"):
        softbeam.hf.eval_model(mlm).generate_until([])
    with pytest.raises(UserError, match="law 'frob': must be one of pseudo, joint, chain-rule"):
        softbeam.hf.eval_model(mlm, law="frob")
