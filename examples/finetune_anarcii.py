"""Fine-tune ANARCII, which numbers antibodies, on damaged heavy chains, through its beam search.

    python examples/finetune_anarcii.py --out runs/anarcii

Heavy chains are made from germline genes: a V gene, a random loop, a J gene, and 15 % of the
residues drawn by Sapiens. ANARCII's own numbers of such a chain are the gold numbers of its damaged
copies: some residues replaced or unknown, ends and stretches of the frameworks lost. Genes of
train, dev and test are different. docs/results/anarcii.md has the plan and the figures. A finished
arm is not trained again.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import Seq2SeqTrainingArguments

from softbeam import (
    CrossEntropy,
    DirectLoss,
    LocallyNormalized,
    SearchAwareTrainer,
    beam_search,
    load_mlm,
)
from softbeam.models import load_seq2seq
from softbeam.objectives import MinimumRisk, Objective
from softbeam.schedules import Constant
from softbeam.training.significance import crossed_test, sentence_gaps

GENES = {  # V genes of human (h), mouse (m) and alpaca (a) heavy chains
    "train": {
        "h1-2": (
            "QVQLVQSGAEVKKPGASVKVSCKASGYTFTGYYMHWVRQAPGQGLEWMG"
            "WINPNSGGTNYAQKFQGRVTMTRDTSISTAYMELSRLRSDDTAVYYCAR"
        ),
        "h1-69": (
            "QVQLVQSGAEVKKPGSSVKVSCKASGGTFSSYAISWVRQAPGQGLEWMG"
            "GIIPIFGTANYAQKFQGRVTITADESTSTAYMELSSLRSEDTAVYYCAR"
        ),
        "h3-15": (
            "EVQLVESGGGLVKPGGSLRLSCAASGFTFSNAWMSWVRQAPGKGLEWVGR"
            "IKSKTDGGTTDYAAPVKGRFTISRDDSKNTLYLQMNSLKTEDTAVYYCTT"
        ),
        "h3-23": (
            "EVQLLESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVS"
            "AISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
        ),
        "h4-34": (
            "QVQLQQWGAGLLKPSETLSLTCAVYGGSFSGYYWSWIRQPPGKGLEWI"
            "GEINHSGSTNYNPSLKSRVTISVDTSKNQFSLKLSSVTAADTAVYYCAR"
        ),
        "h5-51": (
            "EVQLVQSGAEVKKPGESLKISCKGSGYSFTSYWIGWVRQMPGKGLEWMG"
            "IIYPGDSDTRYSPSFQGQVTISADKSISTAYLQWSSLKASDTAMYYCAR"
        ),
        "a3": (
            "QVQLVESGGGLVQAGGSLRLSCAASGRTFSSYAMGWFRQAPGKEREFVA"
            "AISWSGGSTYYADSVKGRFTISRDNAKNTVYLQMNSLKPEDTAVYYCAA"
        ),
    },
    "dev": {
        "h2-5": (
            "QITLKESGPTLVKPTQTLTLTCTFSGFSLSTSGVGVGWIRQPPGKALEWL"
            "ALIYWNDDKRYSPSLKSRLTITKDTSKNQVVLTMTNMDPVDTATYYCAHR"
        ),
        "h7-4-1": (
            "QVQLVQSGSELKKPGASVKVSCKASGYTFTSYAMNWVRQAPGQGLEWMG"
            "WINTNTGNPTYAQGFTGRFVFSLDTSVSTAYLQICSLKAEDTAVYYCAR"
        ),
    },
    "test": {
        "h6-1": (
            "QVQLQQSGPGLVKPSQTLSLTCAISGDSVSSNSAAWNWIRQSPSRGLEWL"
            "GRTYYRSKWYNDYAVSVKSRITINPDTSKNQFSLQLNSVTPEDTAVYYCAR"
        ),
        "m1": (
            "QVQLQQPGAELVKPGASVKLSCKASGYTFTSYWMHWVKQRPGQGLEWIG"
            "RIDPNSGGTKYNEKFKSKATLTVDKPSSTAYMQLSSLTSEDSAVYYCAR"
        ),
        "m2": (
            "QVQLKESGPGLVAPSQSLSITCTVSGFSLTGYGVNWVRQPPGKGLEWL"
            "GMIWGDGNTDYNSALKSRLSISKDNSKSQVFLKMNSLHTDDTARYYCAR"
        ),
    },
}
J_GENES = (
    "AEYFQHWGQGTLVTVSS",
    "YWYFDLWGRGTLVTVSS",
    "AFDIWGQGTMVTVSS",
    "YFDYWGQGTLVTVSS",
    "NWFDPWGQGTLVTVSS",
    "YYYYGMDVWGQGTTVTVSS",
)
LOOP = "GGGGYYYYSSSSDDDRRAVTLWPNEFIH"  # residues of loops, as often as they are drawn
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
FRAMEWORKS = (range(1, 27), range(39, 56), range(66, 105), range(118, 129))

ARMS: dict[str, Objective] = {
    "cross-entropy": CrossEntropy(),
    "direct-loss": DirectLoss(k=3, alpha=Constant(value=1.0), cross_entropy=1.0),
    "minimum-risk": MinimumRisk(n=5, cross_entropy=1.0),
}
RATES = (3e-5, 1e-4)  # each arm has the better one on dev


class Chain(NamedTuple):
    """Residues, and ANARCII's labels: the kind of the chain, then a label for each residue."""

    residues: str
    labels: tuple[str, ...]


# Data


def recombined(genes: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Join V genes in turn, random loops and J genes."""
    loops = ["".join(rng.choices(LOOP, k=rng.randint(2, 14))) for _ in range(count)]
    return [genes[i % len(genes)] + loop + rng.choice(J_GENES) for i, loop in enumerate(loops)]


@torch.no_grad()
def mutated(texts: Sequence[str], rng: random.Random, *, rate: float = 0.15) -> list[str]:
    """Let Sapiens draw some residues of each text, all at once."""
    mlm = load_mlm("sapiens-vh", device="cpu")
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    results = []
    for i in range(0, len(texts), 64):
        tokens, _, frozen = mlm.encode(texts[i : i + 64])
        hidden = (torch.rand(tokens.shape, generator=generator) < rate) & ~frozen
        logits = mlm.logits(tokens, hidden, torch.arange(len(tokens)))
        logits = logits.masked_fill(~mlm.allowed, -torch.inf)
        tokens[hidden] = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        results += mlm.decode(tokens)
    return results


def clean_chains(split: str, count: int) -> list[Chain]:
    """Make chains of a split and number them with ANARCII; those without proper numbers go."""
    rng = random.Random(split)
    texts = mutated(recombined(list(GENES[split].values()), count, rng), rng)
    labels = numbered(load_seq2seq("anarcii"), texts, k=1)  # as the package decodes
    return [Chain(t, tuple(row)) for t, row in zip(texts, labels, strict=True) if proper(row)]


def proper(labels: Sequence[str]) -> bool:
    """Say whether labels are those of a whole heavy chain: rising numbers from 1 or 2 to 128."""
    numbers = [int(label) for label in labels[1:] if label.isdigit()]
    inserted = [label for label in labels[1:] if not label.isdigit()]
    rising = all(a < b for a, b in zip(numbers, numbers[1:], strict=False))
    whole = bool(numbers) and numbers[0] <= 2 and numbers[-1] == 128
    return labels[0] == "H" and rising and whole and set(inserted) <= {"X"}


def damaged(chain: Chain, rng: random.Random) -> Chain:
    """Damage a chain; the residues that are left keep their numbers.

    With probability 1/2 each, up to 20 residues are lost at the beginning, up to 10 at the end, and
    one to three inside a framework, where the loss could be no other stretch; 7 % of the rest are
    replaced and 3 % are unknown (X).
    """
    rows = list(zip(chain.residues, chain.labels[1:], strict=True))
    if rng.random() < 0.5:
        size = rng.randint(1, 3)
        first = rng.choice(stretches(rows, size))
        del rows[first : first + size]
    if rng.random() < 0.5:
        del rows[: rng.randint(1, 20)]
    if rng.random() < 0.5:
        del rows[-rng.randint(1, 10) :]
    changed = [
        "X" if (u := rng.random()) < 0.03 else rng.choice(RESIDUES) if u < 0.1 else residue
        for residue, _ in rows
    ]
    return Chain("".join(changed), (chain.labels[0], *(label for _, label in rows)))


def stretches(rows: Sequence[tuple[str, str]], size: int) -> list[int]:
    """The places of a framework's residues that can be lost in one way only."""
    text, found = [residue for residue, _ in rows], []
    for i in range(1, len(rows) - size):
        around = {label for _, label in rows[i - 1 : i + size + 1]}
        inside = any(around <= set(map(str, region)) for region in FRAMEWORKS)
        if inside and text[i] != text[i + size] and text[i - 1] != text[i + size - 1]:
            found.append(i)
    return found


# Models


@torch.no_grad()
def numbered(numbering, texts: Sequence[str], *, k: int = 3) -> list[list[str]]:
    """Number chains with a beam: as many labels as the chain and its residues need."""
    results = []
    for i in range(0, len(texts), 50):
        part = texts[i : i + 50]
        lengths = torch.tensor([len(text) + 1 for text in part])
        decoder = LocallyNormalized(numbering.model(numbering.encode(part)))
        tokens = beam_search(decoder, k=k, lengths=lengths).tokens[:, 0]
        for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True):
            results.append(numbering.target.convert_ids_to_tokens(row[:length]))
    return results


def errors(numbering, chains: Sequence[Chain], *, k: int = 3) -> np.ndarray:
    """For each chain: wrong labels, all labels, 1 if any is wrong, and 1."""
    rows = []
    for labels, chain in zip(
        numbered(numbering, [c.residues for c in chains], k=k), chains, strict=True
    ):
        wrong = sum(a != b for a, b in zip(labels, chain.labels, strict=True))
        rows.append((wrong, len(labels), wrong > 0, 1))
    return np.array(rows, dtype=float)


def train(
    chains: Sequence[Chain], objective: Objective, out: Path, *, rate: float, seed: int, batch: int
) -> None:
    """Fine-tune a copy of ANARCII on these chains, each once, and save it."""
    numbering = load_seq2seq("anarcii")
    model = numbering.model.model
    for module in model.modules():  # dropout alone would raise the loss from 0.01 to 1.7
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    examples = [
        {
            "input_ids": numbering.source(chain.residues)["input_ids"],
            "labels": numbering.target(" ".join(chain.labels))["input_ids"],
        }
        for chain in chains
    ]
    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            learning_rate=rate,
            warmup_steps=4,
            per_device_train_batch_size=batch,
            max_grad_norm=1.0,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=seed,
        )
        SearchAwareTrainer(model, args, train_dataset=examples, objective=objective).train()
    model.save_pretrained(out)
    numbering.source.save_pretrained(out)
    numbering.target.save_pretrained(out / "target")


# The experiment


class Study:
    """The chains of all splits, and the models that are trained on them."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.chains = options.updates * options.batch  # of a training run
        counts = {"train": 4 * self.chains // 3, "dev": options.chains, "test": options.chains}
        self.clean = {split: clean_chains(split, count) for split, count in counts.items()}
        self.damaged = {
            split: [damaged(chain, random.Random(i)) for i, chain in enumerate(chains)]
            for split, chains in self.clean.items()
        }

    def trained(self, arm: str, rate: float, seed: int) -> Path:
        """Train an arm unless it is there; a quarter of its chains stay clean."""
        out = self.options.out / f"{arm}-{rate}-{seed}"
        if not (out / "target").exists():
            rng = random.Random(seed)
            drawn = rng.sample(self.clean["train"], self.chains)
            mixed = [chain if rng.random() < 0.25 else damaged(chain, rng) for chain in drawn]
            train(mixed, ARMS[arm], out, rate=rate, seed=seed, batch=self.options.batch)
        return out

    def measured(self, model: str | Path, split: str, k: int) -> dict[str, np.ndarray]:
        """Count the errors of a model on the clean and the damaged chains of a split."""
        numbering = load_seq2seq(model)
        kinds = {"clean": self.clean[split], "damaged": self.damaged[split]}
        return {kind: errors(numbering, chains, k=k) for kind, chains in kinds.items()}

    def tuned(self, arm: str) -> float:
        """Choose the learning rate of an arm by its errors on damaged chains of dev."""
        figures = {}
        for rate in RATES:
            dev = self.measured(self.trained(arm, rate, self.options.seeds[0]), "dev", 3)
            print(f"dev {arm} {rate}:", *(f"{k} {share(rows):.3f}" for k, rows in dev.items()))
            figures[rate] = share(dev["damaged"])
        return min(RATES, key=figures.__getitem__)

    def compared(self, rates: dict[str, float], k: int) -> dict:
        """Decode test with every run, and compare arms with the start and with cross-entropy."""
        runs = {"start": [self.measured("anarcii", "test", k)] * len(self.options.seeds)}
        for arm, rate in rates.items():
            folders = [self.trained(arm, rate, seed) for seed in self.options.seeds]
            runs[arm] = [self.measured(folder, "test", k) for folder in folders]
        return figures_of(runs)


def main(words: list[str] | None = None) -> dict:
    """Tune each arm on dev, train it with every seed, and compare all on test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/anarcii"))
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--chains", type=int, default=120, help="of dev and of test")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["cross-entropy", "direct-loss"])
    parser.add_argument("--train-only", action="store_true", help="leave test alone")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    study = Study(options)
    sizes = {split: len(chains) for split, chains in study.clean.items()}
    print("chains:", sizes, flush=True)
    dev = study.measured("anarcii", "dev", 3)
    print("dev start:", *(f"{kind} {share(rows):.3f}" for kind, rows in dev.items()), flush=True)
    rates = {arm: study.tuned(arm) for arm in options.arms}
    for arm, rate in rates.items():
        for seed in options.seeds:
            study.trained(arm, rate, seed)
    record: dict = {"chains": sizes, "updates": options.updates, "rates": rates}
    if options.train_only:
        return record
    record |= {f"beam {k}": study.compared(rates, k) for k in (3, 1)}
    (options.out / "figures.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(json.dumps(record, indent=1))
    return record


def share(rows: np.ndarray) -> float:
    """Wrong labels in %."""
    wrong, labels = rows.sum(0)[:2]
    return float(100 * wrong / labels)


def broken(rows: np.ndarray) -> float:
    """Chains with a wrong label in %; the last column counts chains."""
    return float(100 * rows.sum(0)[2] / rows.sum(0)[3])


def figures_of(runs: dict[str, list[dict[str, np.ndarray]]]) -> dict:
    """Figures of each arm, and differences to the start and to cross-entropy with intervals."""
    results: dict = {}
    for kind in ("damaged", "clean"):
        tables = {arm: [run[kind] for run in found] for arm, found in runs.items()}
        for title, statistic in (("wrong labels %", share), ("wrong chains %", broken)):
            rows: dict = {}
            for arm, found in tables.items():
                rows[arm] = {"runs": [round(statistic(table), 4) for table in found]}
                for other in ("start", "cross-entropy"):
                    if arm not in ("start", other) and other in tables:
                        gaps = sentence_gaps(found, tables[other], statistic=statistic)
                        test = crossed_test(gaps)
                        rows[arm][f"less {other}"] = None if test is None else test._asdict()
            results[f"{kind}, {title}"] = rows
    return results


if __name__ == "__main__":
    main()
