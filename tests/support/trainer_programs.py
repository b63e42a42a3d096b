"""Train with a `SearchAwareTrainer`, in one process or in several that a `Nursery` forks."""

import json
import os
import signal
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Seq2SeqTrainingArguments

from softbeam.objectives.scheduled_sampling import ScheduledSampling
from softbeam.objectives.soft_beam import DirectLoss
from softbeam.runtime import ranks
from softbeam.schedules import Constant
from softbeam.training.huggingface import SearchAwareTrainer
from support.hf_toys import bart

OBJECTIVES = {
    "direct-loss": DirectLoss(k=2),
    "scheduled-sampling": ScheduledSampling(gold=Constant(value=0.0), gold_epochs=0),
}


def pairs(count: int) -> list[dict]:
    """Sources and targets of unequal lengths."""
    rng = torch.Generator().manual_seed(3)
    drawn = torch.randint(3, 10, (count, 6), generator=rng).tolist()
    return [
        {"input_ids": [*row[: 2 + i % 3], 2], "labels": [*row[5 - i % 2 :], 2]}
        for i, row in enumerate(drawn)
    ]


def trained(name: str, folder: Path) -> list[float]:
    """Train on five pairs for two epochs, write the weights, and return the losses.

    All processes together have batches of two pairs; the last one has one.
    """
    torch.manual_seed(0)
    model = bart()
    args = Seq2SeqTrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2 // ranks.world(),
        num_train_epochs=2,
        learning_rate=0.01,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if ranks.world() > 1 else None,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = SearchAwareTrainer(model, args, train_dataset=pairs(5), objective=OBJECTIVES[name])
    trainer.train()
    if ranks.first():
        save_file({n: p.detach() for n, p in model.named_parameters()}, folder / f"{name}.weights")
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def train_both(words: list[str]) -> int:
    """Train with both objectives."""
    folder = Path(words[0])
    for name in OBJECTIVES:
        losses = trained(name, folder)
        if ranks.first():
            (folder / f"{name}.json").write_text(json.dumps(losses))
    return 0


def stop_one(words: list[str]) -> int:
    """Train in two processes, one of which is stopped at its second update."""
    ranks.BEAT, ranks.PATIENT_BEATS = 0.1, 10
    step = SearchAwareTrainer.compute_loss

    def stopping(self, *args, **named):
        if ranks.rank() == 1 and self.state.global_step == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return step(self, *args, **named)

    SearchAwareTrainer.compute_loss = stopping
    trained("direct-loss", Path(words[0]))
    return 0
