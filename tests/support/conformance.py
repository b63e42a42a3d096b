"""What every decoder must do, whatever it is made of; float64 unless a tolerance is given."""

import torch
from torch import Tensor

from softbeam.objectives.losses.feedback import hard_argmax, mixed_scores
from softbeam.search.decoders import LocallyNormalized, stepwise_scores
from softbeam.search.hard import beam_search, greedy
from softbeam.search.soft.beam import FAST, REFERENCE, Form
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.loop import expected_cost, soft_beam, soft_beam_loss
from softbeam.tensors import gather, map_state, mix
from softbeam.types import Decoder, FusedDecoder, State
from support.toys import plain_beam

NEAR = {"rtol": 1e-6, "atol": 1e-6}


def tensors(state: State) -> list[Tensor]:
    """All tensors of a state."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_state(keep, state)
    return found


def steps_equal_all_at_once(decoder: Decoder, target: Tensor) -> None:
    assert isinstance(decoder, Decoder) and isinstance(decoder, FusedDecoder)
    for one in (decoder, LocallyNormalized(decoder)):
        torch.testing.assert_close(one.forced(target), stepwise_scores(one, target))


def a_beam_of_equal_rows_scores_equally(decoder: Decoder) -> None:
    """Rows are batch-major: n rows for each source need no copy of its memory."""
    state, emb = decoder.start()
    rows = torch.arange(len(emb)).repeat_interleave(3)
    wide_state, wide_emb = gather(state, rows), emb[rows]
    for token in (2, 3):
        scores, state = decoder.step(state, emb)
        wide, wide_state = decoder.step(wide_state, wide_emb)
        torch.testing.assert_close(wide, scores[rows])
        emb = decoder.embedding[token].expand_as(emb)
        wide_emb = decoder.embedding[token].expand_as(wide_emb)


def mixing_with_a_one_hot_gathers(decoder: Decoder) -> None:
    """For two sources; the mixed rows then go on as the gathered ones do."""
    state, emb = decoder.start()
    rows = torch.tensor([0, 0, 1, 1])
    _, state = decoder.step(gather(state, rows), emb[rows])
    _, state = decoder.step(state, decoder.embedding[[2, 3, 4, 2]])
    back = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]]).to(emb.dtype)
    mixed, chosen = mix(state, back), gather(state, torch.tensor([1, 0, 2, 2]))
    assert all(tensor.shape[0] == 4 for tensor in tensors(state)) and tensors(state)
    torch.testing.assert_close(tensors(mixed), tensors(chosen))
    after = [decoder.step(one, decoder.embedding[rows])[0] for one in (mixed, chosen)]
    torch.testing.assert_close(*after)


def soft_beams_tend_to_the_hard(decoder: Decoder, *, time: int, eos: int | None) -> None:
    """Loss, scores and paths at a large alpha, against beams in plain loops."""
    batch, vocab = len(decoder.start()[1]), len(decoder.embedding)
    costs = torch.rand(batch, time, vocab, generator=torch.Generator().manual_seed(5)).double()
    for k in (1, 2, 3):
        hard = [plain_beam(decoder, k, time, row=r, eos=eos, normalize=False) for r in range(batch)]
        scores = torch.tensor([[total for total, _ in row] for row in hard]).double()
        paths = [[list(path) + [0] * (time - len(path)) for _, path in row] for row in hard]
        cost = [sum(costs[r, t, v] for t, v in enumerate(paths[r][0])) for r in range(batch)]
        for form in (REFERENCE, FAST, Form(candidates=4, tolerance=0.5), Form(checkpoint=True)):
            beam = soft_beam(decoder, costs, k=k, alpha=1e9, eos=eos, form=form)
            torch.testing.assert_close(beam.score, scores, **NEAR)
            torch.testing.assert_close(expected_cost(beam, 1e9), torch.stack(cost), **NEAR)
        decoded = soft_beam_decode(decoder, k=k, alpha=1e9, time=time, eos=eos)
        assert decoded.tokens.tolist() == paths
        found = beam_search(decoder, k=k, nbest=k, lengths=torch.full((batch,), time), eos=eos)
        torch.testing.assert_close(found.scores, scores)


def own_predictions_fed_back_are_the_greedy_path(decoder: Decoder, time: int) -> None:
    batch = len(decoder.start()[1])
    never = torch.zeros(batch, time, dtype=torch.bool)
    scores = mixed_scores(
        decoder, never.long(), never, feedback=hard_argmax, alpha=1.0, rng=torch.Generator()
    )
    found = greedy(decoder, lengths=torch.full((batch,), time))
    assert found.tokens[:, 0].tolist() == scores.argmax(-1).tolist()
    torch.testing.assert_close(scores.amax(-1).sum(-1), found.scores[:, 0])


def fast_soft_beams_equal_the_reference(
    model: torch.nn.Module, source: Tensor, lengths: list[int], eos: int | None
) -> None:
    """Values and the gradients of all parameters, through the mixed states; raw and local."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    vocab = len(model(source).embedding)
    costs = torch.rand(len(source), max(lengths), vocab, dtype=torch.float64)

    def found(form: Form, wrap) -> list[Tensor | None]:
        loss = soft_beam_loss(
            wrap(model(source)),
            costs,
            k=3,
            alpha=2.0,
            lengths=torch.tensor(lengths),
            eos=eos,
            form=form,
        ).sum()
        return [loss, *torch.autograd.grad(loss, parameters, allow_unused=True)]

    for wrap in (lambda d: d, LocallyNormalized):
        expected = found(REFERENCE, wrap)
        for form in (FAST, Form(candidates=4, tolerance=1e-9), Form(checkpoint=True)):
            for a, b in zip(found(form, wrap), expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
