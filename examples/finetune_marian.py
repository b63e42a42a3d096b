"""Fine-tune a small Marian model on Multi30k: cross-entropy, then local and global soft beams.

    python examples/finetune_marian.py --out runs/marian

The model is trained from scratch, so that no checkpoint is needed. To use one, replace `model` and
`tokenizer` by `AutoModelForSeq2SeqLM.from_pretrained(...)` and its tokenizer. Each stage writes an
ordinary Hugging Face folder; a stage whose folder exists is not trained again.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
)

from softbeam import CrossEntropy, DirectLoss, SearchAwareTrainer
from softbeam.data import Translation
from softbeam.objectives import Objective, Windowed
from softbeam.schedules import Constant
from softbeam.training.metrics import bleu

START = CrossEntropy(smoothing=0.1)
LOCAL = DirectLoss(  # its gradient is noisy: a large weight of cross-entropy keeps it stable
    k=3,
    alpha=Constant(value=1.0),
    cost=Windowed(),
    finish=True,
    extra=2,
    candidates=64,
    cross_entropy=20.0,
    smoothing=0.1,
)
STAGES: dict[str, Objective] = {  # each from the same start, for the same number of epochs
    "more-cross-entropy": CrossEntropy(smoothing=0.1),
    "local-soft-beam": LOCAL,
    "global-soft-beam": replace(LOCAL, normalize=False, log_z_penalty=0.1),
}


def main(words: list[str] | None = None) -> dict[str, float]:
    """Train all stages; returns the BLEU of each on the test split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/marian"))
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=6000)
    parser.add_argument(
        "--limit", type=int, default=None, help="number of training pairs (default: all)"
    )
    parser.add_argument(
        "--test", type=int, default=None, help="number of test sentences (default: all)"
    )
    parser.add_argument("--epochs", type=float, default=10, help="epochs of cross-entropy")
    parser.add_argument("--more-epochs", type=float, default=1, help="epochs of each other stage")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    corpus = Translation(limit=options.limit).load()
    pairs = {
        name: [(" ".join(e.source), " ".join(e.target)) for e in corpus.split(name)]
        for name in ("train", "test")
    }
    start = options.out / "cross-entropy"
    if not (start / "config.json").exists():
        tokenizer = make_tokenizer(pairs["train"], options.vocabulary)
        model = make_model(tokenizer, options)
        train(model, tokenizer, pairs["train"], START, start, options.epochs, lr=1.5e-3)
    for name, objective in STAGES.items():
        if not (options.out / name / "config.json").exists():
            model = AutoModelForSeq2SeqLM.from_pretrained(start)
            tokenizer = AutoTokenizer.from_pretrained(start)
            more = options.out / name
            train(model, tokenizer, pairs["train"], objective, more, options.more_epochs, lr=5e-5)
    scores = {}
    for name in ("cross-entropy", *STAGES):
        scores[name] = test_bleu(options.out / name, pairs["test"][: options.test])
        print(f"{name:20} BLEU {scores[name]:.2f}", flush=True)
    return scores


def make_tokenizer(pairs: list[tuple[str, str]], size: int) -> PreTrainedTokenizerFast:
    """Train byte-pair units on both languages together; every text ends with </s>."""
    units = Tokenizer(models.BPE(unk_token="<unk>"))
    units.normalizer = normalizers.NFC()
    units.pre_tokenizer = pre_tokenizers.Metaspace()
    units.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    units.train_from_iterator((text for pair in pairs for text in pair), trainer)
    units.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=units, **names)


def make_model(tokenizer: PreTrainedTokenizerFast, options: argparse.Namespace) -> MarianMTModel:
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": options.layers for side in sides}
    sizes |= {f"{side}_attention_heads": 4 for side in sides}
    sizes |= {f"{side}_ffn_dim": 3 * options.width for side in sides}
    return MarianMTModel(
        MarianConfig(
            vocab_size=len(tokenizer),
            d_model=options.width,
            max_position_embeddings=256,
            dropout=0.2,
            scale_embedding=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
            forced_eos_token_id=None,
            **sizes,
        )
    )


def train(
    model: MarianMTModel,
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[tuple[str, str]],
    objective: Objective,
    out: Path,
    epochs: float,
    *,
    lr: float,
) -> None:
    """Train one stage and save it."""
    sources, targets = zip(*pairs, strict=True)
    rows = tokenizer(list(sources))
    labels = tokenizer(list(targets))["input_ids"]
    examples = [
        {"input_ids": a, "attention_mask": b, "labels": c}
        for a, b, c in zip(rows["input_ids"], rows["attention_mask"], labels, strict=True)
    ]
    args = Seq2SeqTrainingArguments(
        output_dir=str(out / "training"),
        num_train_epochs=epochs,
        learning_rate=lr,
        warmup_steps=400 if lr > 1e-3 else 0,
        per_device_train_batch_size=96,
        train_sampling_strategy="group_by_length",
        max_grad_norm=1.0,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.accelerator.is_available(),
    )
    trainer = SearchAwareTrainer(
        model,
        args,
        train_dataset=examples,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        objective=objective,
    )
    trainer.train()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


@torch.no_grad()
def test_bleu(folder: Path, pairs: list[tuple[str, str]], k: int = 3) -> float:
    """Decode with Hugging Face alone: the folder is an ordinary one."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    outputs: list[str] = []
    for i in range(0, len(pairs), 50):
        batch = tokenizer([a for a, _ in pairs[i : i + 50]], return_tensors="pt", padding=True)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        generated = model.generate(**inputs, num_beams=k, max_new_tokens=60)
        outputs += tokenizer.batch_decode(generated, skip_special_tokens=True)
    return float(bleu(outputs, [[b] for _, b in pairs])["score"])


if __name__ == "__main__":
    main()
