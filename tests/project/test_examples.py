"""The example scripts run: a whole one on few sentences."""

import pytest
from transformers import AutoModelForSeq2SeqLM

from support.scripts import loaded


@pytest.mark.slow
def test_a_marian_model_is_fine_tuned_from_cross_entropy_to_soft_beams(
    tmp_path, data_dir, monkeypatch
):
    monkeypatch.setenv("SOFTBEAM_DATA", str(data_dir))
    small = ["--width", "16", "--layers", "1", "--vocabulary", "200", "--limit", "24"]
    words = ["--out", str(tmp_path), *small, "--test", "4", "--epochs", "1"]
    found = loaded("finetune_marian", "examples").main(words)
    stages = ["cross-entropy", "more-cross-entropy", "local-soft-beam", "global-soft-beam"]
    assert list(found) == stages and all(0 <= value <= 100 for value in found.values())
    weights = [AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name) for name in stages]
    sums = {sum(p.double().sum().item() for p in model.parameters()) for model in weights}
    assert len(sums) == 4, "each stage trained, and in its own way"
