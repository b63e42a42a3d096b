"""Small Hugging Face models with random weights, and `generate` as an oracle."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from softbeam.search.decoders import LocallyNormalized
from softbeam.search.hard import beam_search, greedy
from softbeam.search.live import live_beam_search
from softbeam.types import Hypotheses

VOCAB = 12
APART = {"tie_word_embeddings": False}  # tied, such small models say one thing to all sources
SIZES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 16}
SIZES |= {"encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "dropout": 0.0, "forced_eos_token_id": None}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": VOCAB}


def marian() -> Any:
    special = {"pad_token_id": 11, "eos_token_id": 0, "decoder_start_token_id": 11}
    return MarianMTModel(MarianConfig(**SIZES, **special, **APART, scale_embedding=True))


def bart() -> Any:
    special = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = BartConfig(**SIZES, **special, **APART, scale_embedding=True)
    return BartForConditionalGeneration(config)


def t5() -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2}
    sizes |= {"num_decoder_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    sizes |= {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 6}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(**sizes, **special))


def whisper() -> Any:
    """Audio of 10 frames of 8 numbers; padded with its end mark, as the published ones are."""
    sizes = {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 5, "encoder_layers": 1}
    sizes |= {"max_target_positions": 16, "decoder_layers": 1, "vocab_size": VOCAB}
    sizes |= {"encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "begin_suppress_tokens": None}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    special = {"pad_token_id": 2, "eos_token_id": 2, "bos_token_id": 2, "decoder_start_token_id": 1}
    return WhisperForConditionalGeneration(WhisperConfig(**sizes, **special, **APART))


PIECES = ("", "<s>", "</s>", " a", " b", " ab", "c", "d", " c", "a", "b", " d")  # not all are words


class ToyTokenizer:
    """Joins pieces of words; the first three are special."""

    eos_token_id, pad_token_id = 2, 2

    def batch_decode(self, rows: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return ["".join(PIECES[i] for i in row if i > 2).strip() for row in rows]


def gpt2() -> Any:
    sizes = {"vocab_size": VOCAB, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    special = {"pad_token_id": 11, "eos_token_id": 2, "bos_token_id": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, **drop, **special, **APART))


def llama() -> Any:
    sizes = {"vocab_size": VOCAB, "hidden_size": 8, "intermediate_size": 12}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    special = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **special, **APART, max_position_embeddings=16))


def random(make, seed: int = 0) -> Any:
    """A model far from uniform, in float64 throughout."""
    torch.manual_seed(seed)
    model = make().double().eval()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dim() > 1:
            nn.init.normal_(parameter)
        elif parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    if hasattr(model, "final_logits_bias"):
        nn.init.normal_(model.final_logits_bias)
    for module in model.modules():
        if type(module).__name__ in ("T5LayerNorm", "LlamaRMSNorm"):
            module.forward = exact_norm(module)
    return model


def exact_norm(module: Any) -> Any:
    """Root-mean-square normalization in the input's type; the models' own is always float32."""

    def forward(x: Tensor) -> Tensor:
        return module.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    return forward


def sources(count: int, seed: int = 0) -> Tensor:
    """In our numbers: 1 to 6 tokens, padded with 0."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCAB, (count, 6), generator=rng)
    lengths = torch.randint(1, 7, (count, 1), generator=rng)
    return tokens * (torch.arange(6) < lengths)


def generated(model: Any, inputs: dict[str, Tensor], *, eos: int | None, **knobs) -> Any:
    """What `generate` makes of 6 steps; `eos` None makes outputs that never end."""
    special = {"pad_token_id": model.config.pad_token_id, "eos_token_id": eos}
    if model.config.is_encoder_decoder:
        special["decoder_start_token_id"] = model.config.decoder_start_token_id
    model.generation_config = GenerationConfig(**special)
    more = {"max_new_tokens": 6, "do_sample": False, "length_penalty": 0.0, "top_k": None}
    return model.generate(
        **inputs, **(more | knobs), return_dict_in_generate=True, output_scores=True
    )


def found(adapter: Any, source: Tensor, *, k: int | None, eos: int | None) -> Hypotheses:
    """The same by our searches: greedy, or a beam."""
    limits = torch.full((len(source),), 6)
    with torch.no_grad():
        decoder = LocallyNormalized(adapter(source))
        if k is None:
            return greedy(decoder, lengths=limits, eos=eos)
        return beam_search(decoder, k=k, nbest=k, lengths=limits, eos=eos)


def cut(tokens: Tensor, eos: int | None) -> list[list[int]]:
    """Each row up to and with its first end mark."""
    rows = tokens.tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


def greedy_equals_generate(adapter: Any, inputs: dict[str, Tensor], source: Tensor) -> None:
    model, eos = adapter.model, adapter.eos
    ours = found(adapter, source, k=None, eos=eos)
    theirs = generated(model, inputs, eos=model.config.eos_token_id)
    tokens = theirs.sequences[:, -len(theirs.scores) :]
    expected = cut(adapter.renumbered(tokens), eos)
    assert cut(ours.tokens[:, 0], eos) == expected
    ended, different = sum(row[-1] == eos for row in expected), len({*map(tuple, expected)})
    assert ended > 10 and different > 20, (ended, different)
    scores = torch.stack(theirs.scores, 1).log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    real = torch.arange(tokens.shape[1]) < torch.tensor([len(row) for row in expected])[:, None]
    torch.testing.assert_close(
        ours.scores[:, 0], (scores * real).sum(1).to(ours.scores), rtol=0, atol=1e-4
    )


def beams_equal_generate(adapter: Any, inputs: dict[str, Tensor], source: Tensor) -> None:
    """All three hypotheses and their scores, for outputs of a given length."""
    ours = found(adapter, source, k=3, eos=None)
    theirs = generated(adapter.model, inputs, eos=None, num_beams=3, num_return_sequences=3)
    tokens = adapter.renumbered(theirs.sequences[:, -6:]).unflatten(0, (len(source), 3))
    scores = theirs.sequences_scores.unflatten(0, (len(source), 3))
    torch.testing.assert_close(ours.scores, scores.to(ours.scores), rtol=0, atol=1e-4)
    assert ours.tokens.tolist() == tokens.tolist()


def ending_beams_equal_generate(adapter: Any, inputs: dict[str, Tensor], source: Tensor) -> None:
    """All three hypotheses and their scores where outputs end, in the search that keeps them apart.

    The best of Algorithm 1, whose finished hypotheses stay inside its k, is mostly the same.
    """
    model, eos = adapter.model, adapter.eos
    limits = torch.full((len(source),), 6)
    with torch.no_grad():
        ours = live_beam_search(
            LocallyNormalized(adapter(source)), k=3, nbest=3, lengths=limits, eos=eos
        )
    knobs = {"num_beams": 3, "num_return_sequences": 3, "early_stopping": "never"}
    theirs = generated(model, inputs, eos=model.config.eos_token_id, **knobs)
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    tokens = cut(adapter.renumbered(theirs.sequences[:, start:]), eos)
    scores = theirs.sequences_scores.unflatten(0, (len(source), 3))
    torch.testing.assert_close(ours.scores, scores.to(ours.scores), rtol=0, atol=1e-4)
    assert cut(ours.tokens.flatten(0, 1), eos) == tokens
    best = cut(found(adapter, source, k=3, eos=eos).tokens[:, 0], eos)
    same = sum(a == b for a, b in zip(best, tokens[::3], strict=True))
    assert 0.8 * len(best) < same <= len(best)
