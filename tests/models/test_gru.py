"""A GRU encoder-decoder: what every decoder must do, and plain loops over its weights."""

import numpy as np
import torch

from softbeam.data.batches import Encoded, collate
from softbeam.models.gru import GruSeq2Seq
from softbeam.search.hard import greedy
from softbeam.search.soft.loop import soft_beam_loss
from softbeam.types import FedDecoder, SelectingDecoder
from support import conformance

SOURCE = torch.tensor([[3, 4, 5, 2], [5, 2, 0, 0]])


def build(width: int = 6) -> GruSeq2Seq:
    torch.manual_seed(0)
    model = GruSeq2Seq(6, 7, width, start=2).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def batch_of(lengths: list[int]):
    rng = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 6, (2, n), generator=rng).tolist() for n in lengths]
    return collate([Encoded(source, target) for source, target in rows])


def gru_step(x, h, w_ih, w_hh, b_ih, b_hh):
    """Cho et al. 2014, with the reset gate after the product, as torch has it."""
    reset_x, update_x, new_x = np.split(w_ih @ x + b_ih, 3)
    reset_h, update_h, new_h = np.split(w_hh @ h + b_hh, 3)
    reset, update = (1 / (1 + np.exp(-v)) for v in (reset_x + reset_h, update_x + update_h))
    return (1 - update) * np.tanh(new_x + reset * new_h) + update * h


def plain_greedy(arrays: dict[str, np.ndarray], source: list[int], start: int, eos: int, most: int):
    """Outputs of a numpy archive with the names of `g2p_en`, and the scores of each step."""
    parts = {
        side: [arrays[f"{side}_{n}"] for n in ("w_ih", "w_hh", "b_ih", "b_hh")]
        for side in ("enc", "dec")
    }
    h = np.zeros(arrays["enc_w_hh"].shape[1], arrays["enc_w_hh"].dtype)
    for token in source:
        h = gru_step(arrays["enc_emb"][token], h, *parts["enc"])
    tokens, scores, last = [], [], start
    while len(tokens) < most and last != eos:
        h = gru_step(arrays["dec_emb"][last], h, *parts["dec"])
        scores.append(arrays["fc_w"] @ h + arrays["fc_b"])
        last = int(scores[-1].argmax())
        tokens.append(last)
    return tokens, scores


def arrays_of(model: GruSeq2Seq) -> dict[str, np.ndarray]:
    named = {"enc_emb": model.source_embed.weight, "dec_emb": model.embed.weight}
    for short, gru in (("enc", model.encoder), ("dec", model.decoder)):
        named |= {f"{short}_w_ih": gru.weight_ih_l0, f"{short}_w_hh": gru.weight_hh_l0}
        named |= {f"{short}_b_ih": gru.bias_ih_l0, f"{short}_b_hh": gru.bias_hh_l0}
    named |= {"fc_w": model.output.weight, "fc_b": model.output.bias}
    return {name: value.detach().numpy() for name, value in named.items()}


def test_scores_and_greedy_outputs_are_those_of_plain_loops():
    model = build()
    outputs = greedy(model(SOURCE), lengths=torch.tensor([6, 6]), eos=3)
    for row, source in enumerate([[3, 4, 5, 2], [5, 2]]):
        tokens, scores = plain_greedy(arrays_of(model), source, 2, 3, 6)
        assert outputs.tokens[row, 0, : len(tokens)].tolist() == tokens
        forced = model(SOURCE[row : row + 1]).forced(torch.tensor([tokens]))[0]
        torch.testing.assert_close(forced, torch.tensor(np.stack(scores)))


def test_conforms():
    model = build()
    decoder = model(SOURCE)
    assert isinstance(decoder, FedDecoder) and isinstance(decoder, SelectingDecoder)
    conformance.steps_equal_all_at_once(decoder, torch.tensor([[1, 2, 3, 4, 5, 6]] * 2))
    conformance.a_beam_of_equal_rows_scores_equally(decoder)
    conformance.mixing_with_a_one_hot_gathers(decoder)
    conformance.own_predictions_fed_back_are_the_greedy_path(decoder, time=5)
    conformance.soft_beams_tend_to_the_hard(decoder, time=3, eos=2)
    conformance.fast_soft_beams_equal_the_reference(model, SOURCE, [4, 2], 1)
    batch = batch_of([5, 2, 4])
    conformance.some_sources_can_be_left_out(model(batch.source), batch.target)
    conformance.the_order_of_the_batch_does_not_matter(model, batch)


def test_gradients_through_the_soft_beam():
    model, costs = build(width=3), torch.rand(2, 3, 7, dtype=torch.float64)

    def loss(*_):
        return soft_beam_loss(model(SOURCE), costs, k=2, alpha=0.5, eos=1)

    knobs = {"check_undefined_grad": False, "fast_mode": True}  # along random directions
    assert torch.autograd.gradcheck(loss, [*model.parameters()], **knobs)
