"""A model that does not fit into memory is refused before it is built."""

from dataclasses import fields

import pytest
import torch

from softbeam.data.encoding import Codecs
from softbeam.data.vocabulary import CHARACTERS, SOURCE, Spelled, Vocabulary
from softbeam.errors import UserError
from softbeam.models import building
from softbeam.models.specs import Cmlm, Lstm, Transformer

NINE = Codecs(
    Spelled(Vocabulary("abcdefg", SOURCE), Vocabulary("abc", CHARACTERS)), Vocabulary("abcdefghi")
)
SPECS = [
    Lstm(hidden=50, embedding=4, characters=3),
    Transformer(width=50, heads=1, layers=1, longest=8),
    Cmlm(width=50, heads=1, layers=1, longest=8),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_the_limit_is_the_bytes_of_all_copies(spec, monkeypatch):
    size = sum(p.numel() * 4 for p in spec.build_for(NINE).parameters())
    monkeypatch.setattr(building, "memory", lambda: 3 * size)
    building.build(spec, NINE, copies=3)
    with pytest.raises(UserError, match=r"^--model\.(hidden|width) 50: .* parameters need .* GB"):
        building.build(spec, NINE, copies=4)


def test_the_check_changes_no_weight():
    def weights(build) -> torch.Tensor:
        torch.manual_seed(1)
        return torch.cat([p.flatten() for p in build().parameters()])

    for spec in SPECS:
        plain = weights(lambda spec=spec: spec.build_for(NINE))
        assert plain.equal(weights(lambda spec=spec: building.build(spec, NINE)))


@pytest.mark.parametrize("spec", [*SPECS, Lstm(characters=64), Transformer(), Cmlm()], ids=repr)
def test_the_rough_estimate_is_above_the_size(spec):
    size = sum(p.numel() * p.element_size() for p in spec.build_for(NINE).parameters())
    numbers = {f.name: getattr(spec, f.name) for f in fields(spec)}
    sizes = {name: n for name, n in numbers.items() if isinstance(n, int) and n > 1}
    assert size < building.roughly(sizes, NINE) < 1e9


def test_a_small_model_is_built_once(monkeypatch):
    monkeypatch.setattr(building, "memory", lambda: 10**10)
    devices: list[str] = []
    plain = Lstm.build_for

    def build_for(spec, codecs):
        devices.append(str(torch.empty(1).device))
        return plain(spec, codecs)

    monkeypatch.setattr(Lstm, "build_for", build_for)
    building.build(Lstm(characters=64), NINE)
    assert devices == ["cpu"]
