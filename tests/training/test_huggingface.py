"""Fine-tuning Hugging Face models: against their own loss, their own trainer, and themselves."""

import json
import subprocess
import sys

import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from softbeam.errors import UserError
from softbeam.objectives.hard_beam import BeamCrf
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.risk import MinimumRisk, Reinforce
from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.schedules import Constant, Moment
from softbeam.search import Form
from softbeam.training.huggingface import (
    SearchAwareTrainer,
    adapted,
    as_batch,
    padded as padded_batch,
    search_aware_loss,
    through,
)
from support.hf_toys import bart, gpt2, llama, marian, t5

SEQ2SEQ, CAUSAL = [marian, bart, t5], [gpt2, llama]
ALWAYS = ScheduledSampling(gold=Constant(value=0.3), gold_epochs=0, feedback="gumbel_soft_sample")


def pairs(model, count: int = 12) -> list[dict]:
    """Sources of four tokens and targets of three, as a tokenizer would number them."""
    rng = torch.Generator().manual_seed(3)
    drawn = torch.randint(3, 10, (count, 6), generator=rng)
    end = torch.full((count, 1), model.config.eos_token_id)
    source, target = torch.cat([drawn[:, :4], end], 1), torch.cat([drawn[:, 4:], end], 1)
    return [
        {"input_ids": a, "attention_mask": torch.ones_like(a), "labels": b}
        for a, b in zip(source, target, strict=True)
    ]


def padded(model, *, left: bool = False) -> dict:
    """Two rows of different lengths on both sides."""
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    ids = [[3, 4, 5, eos], [6, eos, pad, pad]]
    if left:
        ids[1] = [pad, pad, 6, eos]
    ids = torch.tensor(ids)
    return {
        "input_ids": ids,
        "attention_mask": (ids != pad).long(),
        "labels": torch.tensor([[7, 3, 8, eos], [9, eos, -100, -100]]),
    }


def continued(model) -> dict:
    """Prompts and what follows them, padded on the right as training collators do."""
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    ids = torch.tensor([[3, 4, 5, 6, eos], [7, 8, eos, pad, pad]])
    labels = ids.masked_fill(ids == pad, -100)
    labels[0, :3] = labels[1, :1] = -100
    return {"input_ids": ids, "attention_mask": (ids != pad).long(), "labels": labels}


def made(make, seed: int = 0):
    torch.manual_seed(seed)
    return make()


@pytest.mark.parametrize(
    "make, batch",
    [(make, padded) for make in SEQ2SEQ] + [(make, continued) for make in CAUSAL],
    ids=lambda f: f.__name__,
)
def test_cross_entropy_is_the_models_own_loss(make, batch):
    model = made(make).double()
    inputs = batch(model)
    ours = search_aware_loss(model, inputs, CrossEntropy())
    expected = model(**inputs).loss
    torch.testing.assert_close(ours.total / ours.size, expected.to(ours.total), atol=1e-6, rtol=0)
    assert ours.size == int((inputs["labels"] != -100).sum())


def test_padding_may_be_on_the_left_of_prompts():
    model = made(llama).double()
    right = continued(model)
    left = {
        "input_ids": torch.stack([right["input_ids"][0], right["input_ids"][1].roll(2)]),
        "attention_mask": torch.stack([torch.ones(5), torch.tensor([0, 0, 1, 1, 1])]).long(),
        "labels": torch.stack([right["labels"][0], right["labels"][1].roll(2)]),
    }
    a, b = (search_aware_loss(model, x, DirectLoss(k=2)).total for x in (left, right))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", SEQ2SEQ, ids=lambda f: f.__name__)
def test_a_batch_is_renumbered_as_the_adapter_says(make):
    model = made(make)
    adapter, inputs = adapted(model), padded(model)
    batch = as_batch(adapter, inputs)
    assert batch.mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert (batch.target[~batch.mask] == 0).all() and (batch.source[1, 2:] == 0).all()
    back = adapter.renumbered(batch.target)[batch.mask]
    assert back.tolist() == inputs["labels"][inputs["labels"] != -100].tolist()


def cut(model) -> dict:
    """Two rows of labels, the first cut by a limit before its end mark."""
    inputs, eos = padded(model), model.config.eos_token_id
    return inputs | {"labels": torch.tensor([[7, 6, 5, 9], [7, 6, 5, eos]])}


@pytest.mark.parametrize("make", SEQ2SEQ, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "objective",
    [DirectLoss(k=2, finish=True), MinimumRisk(n=4, finish=True, extra=1)],
    ids=lambda o: type(o).__name__,
)
def test_the_end_mark_is_the_models_whatever_the_labels_end_with(make, objective):
    """Cut labels have no end mark: no order of the rows may make another token one."""
    model = made(make).double()
    inputs = cut(model)
    swapped = {name: rows.flip(0) for name, rows in inputs.items()}
    a, b = (search_aware_loss(model, x, objective).total for x in (inputs, swapped))
    torch.testing.assert_close(a, b)


def test_the_running_mean_is_of_the_model():
    """Adapters are made for each batch; the mean cost of earlier batches has to outlive them."""
    model, objective = made(bart), Reinforce(baseline="running")
    first, second = (search_aware_loss(model, padded(model), objective).log for _ in range(2))
    assert first["baseline"] == 0 and second["baseline"] == pytest.approx(first["cost"]) != 0


def arguments(folder, **knobs) -> Seq2SeqTrainingArguments:
    knobs = {"per_device_train_batch_size": 2, "max_steps": 6, "save_steps": 3} | knobs
    return Seq2SeqTrainingArguments(
        output_dir=str(folder),
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        seed=5,
        **knobs,
    )


def trained(folder, make, objective, *, resume=None, **knobs):
    model = made(make)
    trainer = SearchAwareTrainer(
        model, arguments(folder, **knobs), train_dataset=pairs(model), objective=objective
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("make", SEQ2SEQ, ids=lambda f: f.__name__)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_with_cross_entropy_it_is_the_ordinary_trainer(tmp_path, make, accumulation):
    """Of whole batches: accumulating, the ordinary one sums means for some families (Marian)."""
    plain = {"optim": "sgd"}  # Adam makes steps of rounding errors where a gradient is zero
    knobs = plain | {"gradient_accumulation_steps": accumulation}
    ours = trained(tmp_path / "a", make, CrossEntropy(), **knobs).model.state_dict()
    model = made(make)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    knobs = plain | {"per_device_train_batch_size": 2 * accumulation}
    Seq2SeqTrainer(model, arguments(tmp_path / "b", **knobs), train_dataset=pairs(model)).train()
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(ours[name], expected, atol=1e-6, rtol=0)
    assert any((before[name] - ours[name]).abs().max() > 1e-4 for name in before)


@pytest.mark.slow
def test_objectives_learn_and_are_logged(tmp_path):
    """The expected cost of a task with one right answer falls."""
    objective = DirectLoss(k=2, alpha=Constant(value=2.0), diagnose_every=1)
    trainer = trained(tmp_path, bart, objective, max_steps=60, save_steps=60)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert lines[0]["objective_alpha"] == 2.0
    first, last = (sum(x["loss"] for x in part) for part in (lines[:10], lines[-10:]))
    assert last < 0.6 * first, (first, last)


@pytest.mark.slow
def test_a_resumed_run_repeats_its_random_choices(tmp_path):
    whole = trained(tmp_path, t5, ALWAYS).model.state_dict()
    again = trained(tmp_path, t5, ALWAYS, resume=str(tmp_path / "checkpoint-3")).model.state_dict()
    other = trained(tmp_path / "o", t5, CrossEntropy()).model.state_dict()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert not all(torch.equal(whole[name], other[name]) for name in whole)


@pytest.mark.slow
def test_checkpoints_are_ordinary_folders(tmp_path):
    trainer = trained(tmp_path, marian, DirectLoss(k=2))
    folder = tmp_path / "checkpoint-6"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert "softbeam" not in (folder / "config.json").read_text()
    code = (
        "import sys, json; sys.modules['softbeam'] = None\n"
        "from transformers import AutoModelForSeq2SeqLM\n"
        f"model = AutoModelForSeq2SeqLM.from_pretrained({str(folder)!r})\n"
        "print(json.dumps(type(model).__name__))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(out.stdout) == "MarianMTModel"


def test_evaluation_reports_the_models_own_loss_and_generates(tmp_path):
    model = made(bart)
    knobs = {"predict_with_generate": True, "per_device_eval_batch_size": 4}
    trainer = SearchAwareTrainer(
        model, arguments(tmp_path, **knobs), eval_dataset=pairs(model, 4), objective=DirectLoss()
    )
    found = trainer.predict(trainer.eval_dataset, max_length=6)
    rows = [row for row in trainer.eval_dataset]
    inputs = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        expected = model.eval()(**inputs).loss
    assert found.metrics["test_loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert found.predictions.shape[0] == 4


def test_gradients_pass_through_a_wrapper():
    """What gathers gradients over processes sees the whole loss as one call of the model."""
    init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = made(bart).train()
        inputs = padded(model)

        def loss():
            return search_aware_loss(model, inputs, DirectLoss(k=2)).total

        loss().backward()
        expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        wrapper, seen = DistributedDataParallel(model, find_unused_parameters=True), []
        wrapper.register_comm_hook(None, lambda _, bucket: watched(bucket, seen))
        through(wrapper, model, loss).backward()
        for name, parameter in model.named_parameters():
            if name in expected:
                torch.testing.assert_close(parameter.grad, expected[name])
        assert sum(seen) >= sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert "forward" not in vars(model)
    finally:
        destroy_process_group()


def watched(bucket, seen: list[int]):
    seen.append(bucket.buffer().numel())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.parametrize(
    "change, said",
    [
        ({"labels": None}, "labels"),
        ({"labels": torch.full((2, 4), -100)}, "row 0 of a batch has no label"),
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_refused(change, said):
    model = made(bart)
    inputs = {k: v for k, v in (padded(model) | change).items() if v is not None}
    with pytest.raises(UserError, match=said):
        search_aware_loss(model, inputs, CrossEntropy())


def test_labels_within_a_prompt_are_refused():
    model = made(llama)
    inputs = continued(model)
    inputs["labels"][0, 0] = 3
    with pytest.raises(UserError, match="row 0: labels are not one stretch"):
        search_aware_loss(model, inputs, CrossEntropy())


@pytest.mark.slow
def test_label_smoothing_is_that_of_the_ordinary_trainer(tmp_path):
    knobs = {"label_smoothing_factor": 0.2, "optim": "sgd", "max_steps": 3, "save_steps": 3}
    ours = trained(tmp_path / "a", bart, CrossEntropy(), **knobs).model.state_dict()
    model = made(bart)
    examples = [
        e | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(e["labels"][None])[0]}
        for e in pairs(model)
    ]  # the ordinary one takes the labels from the model
    Seq2SeqTrainer(model, arguments(tmp_path / "b", **knobs), train_dataset=examples).train()
    plain = trained(tmp_path / "c", bart, CrossEntropy(), **knobs | {"label_smoothing_factor": 0})
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(ours[name], expected, atol=1e-6, rtol=0)
    other = plain.model.state_dict()
    assert any((other[name] - ours[name]).abs().max() > 1e-5 for name in ours)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        (BeamCrf(), "BeamCrf has no smoothing; set label_smoothing_factor to 0"),
        (DirectLoss(), "smooths only the cross-entropy added to it; give cross_entropy=1.0"),
        (CrossEntropy(smoothing=0.3), "CrossEntropy has smoothing=0.3; give one of the two"),
    ],
)
def test_smoothing_without_effect_is_refused(tmp_path, objective, said):
    args = arguments(tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(UserError, match=f"label_smoothing_factor=0.1: .*{said}"):
        SearchAwareTrainer(made(bart), args, objective=objective)
    both = SearchAwareTrainer(made(bart), args, objective=DirectLoss(cross_entropy=1.0))
    assert both.objective.smoothing == 0.1


# Examples of unequal lengths


def unequal(model) -> list[dict]:
    """As a tokenizer numbers texts; also a column of text, which is no input of the model."""
    end = model.config.eos_token_id
    sources = [[3, 4, 5, end], [6, end], [7, 8, 9, 10, 3, end]]
    targets = [[7, 3, end], [9, 8, 7, 6, end], [4, end]]
    if not model.config.is_encoder_decoder:
        rows = [s[:-1] + t for s, t in zip(sources, targets, strict=True)]
        masked = [[-100] * (len(s) - 1) + t for s, t in zip(sources, targets, strict=True)]
        sources, targets = rows, masked
    return [
        {"input_ids": s, "labels": t, "text": "a b"} for s, t in zip(sources, targets, strict=True)
    ]


@pytest.mark.parametrize("make", [marian, t5, gpt2], ids=lambda f: f.__name__)
def test_a_padded_batch_is_its_examples_one_by_one(make):
    model = made(make).double()
    examples = unequal(model)
    batch = padded_batch(examples, pad=adapted(model).pad_id)
    assert set(batch) == {"input_ids", "labels", "attention_mask"}
    for objective in (CrossEntropy(), DirectLoss(k=2)):
        alone = [
            search_aware_loss(model, padded_batch([e], pad=0), objective).total for e in examples
        ]
        together = search_aware_loss(model, batch, objective).total
        torch.testing.assert_close(together, torch.stack(alone).sum())
    masked = [e | {"attention_mask": [1] * len(e["input_ids"])} for e in examples]
    assert padded_batch(masked, pad=1)["attention_mask"].equal(batch["attention_mask"])


@pytest.mark.slow
def test_the_trainer_pads_logs_and_evaluates_the_objective_if_asked(tmp_path):
    model = made(bart)
    knobs = {"max_steps": 2, "save_steps": 2, "remove_unused_columns": False}
    trainer = SearchAwareTrainer(
        model,
        arguments(tmp_path, **knobs),
        train_dataset=unequal(model),
        eval_dataset=unequal(model),
        objective=DirectLoss(k=2, alpha=Constant(value=2.0)),
        eval_objective=True,
    )
    trainer.train()
    line = next(line for line in trainer.state.log_history if "loss" in line)
    names = {"alpha", "beam_entropy", "beam_overlap", "gold_on_beam"}
    assert {f"objective_{name}" for name in names} <= line.keys()
    assert 0 <= line["objective_gold_on_beam"] <= 1
    batch = padded_batch(unequal(model), pad=1)
    loss = search_aware_loss(model.eval(), batch, trainer.objective)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(
        (loss.total / loss.size).item(), rel=1e-4
    )
    trainer.eval_objective = False
    own = model(**batch).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(own, rel=1e-4)


def test_a_collator_that_is_given_is_used(tmp_path):
    collate = pytest.importorskip("transformers").default_data_collator
    trainer = SearchAwareTrainer(
        made(bart), arguments(tmp_path), data_collator=collate, objective=CrossEntropy()
    )
    assert trainer.data_collator is collate


# Less memory


def gradients_and_memory(make, objective, *, recompute: bool) -> tuple[list, int]:
    """The gradients of an objective, and how many numbers are kept for the backward pass."""
    model, sizes = made(make).double().train(), []
    if recompute:
        model.gradient_checkpointing_enable()
    batch = padded_batch(unequal(model), pad=adapted(model).pad_id)

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = search_aware_loss(model, batch, objective, now=Moment(5, 5))
    loss.total.backward()
    assert model.is_gradient_checkpointing == recompute
    return [p.grad for p in model.parameters() if p.grad is not None], sum(sizes)


@pytest.mark.parametrize("make", [t5, gpt2], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "objective",
    [CrossEntropy(), DirectLoss(k=2), BeamCrf(k=2), ALWAYS],
    ids=lambda o: type(o).__name__,
)
def test_gradient_checkpointing_changes_no_gradient(make, objective):
    plain, kept = gradients_and_memory(make, objective, recompute=False)
    again, fewer = gradients_and_memory(make, objective, recompute=True)
    torch.testing.assert_close(again, plain)
    assert fewer < kept


@pytest.mark.slow
def test_an_objective_takes_the_form_of_its_beam():
    plain, kept = gradients_and_memory(marian, DirectLoss(k=2), recompute=False)
    form = Form(checkpoint=True)
    again, fewer = gradients_and_memory(marian, DirectLoss(k=2, form=form), recompute=False)
    torch.testing.assert_close(again, plain)
    assert fewer < kept / 2


@pytest.mark.slow
def test_the_trainers_gradient_checkpointing_trains_the_same(tmp_path):
    knobs = {"optim": "sgd", "max_steps": 2, "save_steps": 2}
    runs = [
        trained(tmp_path / str(on), bart, DirectLoss(k=2), gradient_checkpointing=on, **knobs)
        for on in (False, True)
    ]
    for name, expected in runs[0].model.state_dict().items():
        torch.testing.assert_close(runs[1].model.state_dict()[name], expected)
