"""What every decoder must do, whatever it is made of; float64 unless a tolerance is given."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbeam.data.batches import Encoded, collate
from softbeam.models.huggingface.decoder import HfModel
from softbeam.objectives.likelihood import CrossEntropy
from softbeam.objectives.losses.feedback import hard_argmax, mixed_scores
from softbeam.schedules import Moment
from softbeam.search.decoders import LocallyNormalized, stepwise_scores
from softbeam.search.hard import beam_search, greedy
from softbeam.search.soft.decode import soft_beam_decode
from softbeam.search.soft.form import FAST, REFERENCE, Form
from softbeam.search.soft.loop import expected_cost, soft_beam, soft_beam_loss
from softbeam.tensors import gather, map_state, mix
from softbeam.types import Batch, Decoder, FusedDecoder, State
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
    model: nn.Module, source: Tensor, lengths: list[int], eos: int | None
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
            values = found(form, wrap)
            torch.testing.assert_close(values[0], expected[0], rtol=0, atol=1e-6)
            for a, b in zip(values[1:], expected[1:], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def padding_never_changes_a_number(model: nn.Module, data: list[Encoded], extra: int) -> Batch:
    """Loss, gradient, hard and soft beams of a sentence, alone and in a padded batch."""
    batch = collate(data)
    padding = torch.zeros(len(data), extra, dtype=torch.long)
    batch = batch._replace(
        source=pad(batch.source, (*[0, 0] * (batch.source.dim() - 2), 0, extra)),
        target=torch.cat([batch.target, padding], 1),
        mask=torch.cat([batch.mask, padding.bool()], 1),
    )

    def gradients(one: Batch) -> list[Tensor]:
        loss = CrossEntropy()(model, one, now=Moment(), rng=torch.Generator()).total
        trained = [p for p in model.parameters() if p.requires_grad]
        return [loss, *torch.autograd.grad(loss, trained)]

    together, alone = gradients(batch), [gradients(collate([e])) for e in data]
    for i, value in enumerate(together):
        torch.testing.assert_close(value, sum(a[i] for a in alone))
    limits = torch.tensor([len(e.source) for e in data])
    hard = beam_search(model(batch.source), k=3, lengths=limits)
    soft = soft_beam(model(batch.source), k=3, alpha=0.5, time=int(limits.max()), lengths=limits)
    for row, example in enumerate(data):
        single, n = model(collate([example]).source), len(example.source)
        one = beam_search(single, k=3, lengths=limits[row : row + 1])
        assert one.tokens[0, 0].tolist() == hard.tokens[row, 0, :n].tolist()
        torch.testing.assert_close(one.scores[0], hard.scores[row])
        apart = soft_beam(single, k=3, alpha=0.5, time=n)
        torch.testing.assert_close(apart.score[0], soft.score[row])
    return batch


def the_order_of_the_batch_does_not_matter(model: nn.Module, batch: Batch) -> None:
    order = torch.tensor([2, 0, 1])
    scores = model(batch.source).forced(batch.target)
    permuted = model(batch.source[order]).forced(batch.target[order])
    torch.testing.assert_close(scores[order], permuted)


def beams_of_a_source_do_not_depend_on_the_batch(model: nn.Module, source: Tensor) -> None:
    """Nor on more padding; of two sources, the second is the shorter one."""
    limits, short = torch.tensor([4, 4]), int((source[1] != 0).sum())
    whole = beam_search(model(source), k=2, lengths=limits)
    wide = beam_search(model(pad(source, (0, 2))), k=2, lengths=limits)
    back = beam_search(model(source.flip(0)), k=2, lengths=limits)
    alone = beam_search(model(source[1:, :short]), k=2, lengths=limits[1:])
    torch.testing.assert_close(wide.scores, whole.scores)
    torch.testing.assert_close(back.scores.flip(0), whole.scores)
    torch.testing.assert_close(alone.scores, whole.scores[1:])
    assert torch.equal(wide.tokens, whole.tokens) and torch.equal(alone.tokens, whole.tokens[1:])


def gradients_flow_through_the_mixed_cache(adapter: HfModel, source: Tensor) -> None:
    """Of the embeddings and the first attention of a Hugging Face model."""
    adapter.tokens.padding_idx = None  # the row of padding has no gradient on purpose
    costs = torch.rand(2, 3, 12, generator=torch.Generator().manual_seed(1)).double()
    table_and_first_attention = list(adapter.model.get_decoder().parameters())[:6]
    parameters = [p for p in table_and_first_attention if p.requires_grad]

    def loss(*_):
        return soft_beam_loss(adapter(source), costs, k=2, alpha=0.5)

    assert torch.autograd.gradcheck(loss, parameters, check_undefined_grad=False, fast_mode=True)


def some_sources_can_be_left_out(decoder, target: Tensor) -> None:
    """Bound to some of its sources, in another order, a decoder scores these as before."""
    some = torch.tensor([2, 0])
    part = decoder.select(some)
    torch.testing.assert_close(part.forced(target[some]), decoder.forced(target)[some])
    steps = stepwise_scores(decoder, target)
    torch.testing.assert_close(stepwise_scores(part, target[some]), steps[some])
