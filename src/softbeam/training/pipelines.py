"""A pipeline of transformers that fills several gaps of a text jointly."""

from typing import Any

import transformers
from transformers.pipelines import PIPELINE_REGISTRY, Pipeline

from softbeam.errors import check_range
from softbeam.models.huggingface.masked import HfMaskedLM
from softbeam.sampling.texts.api import infill
from softbeam.sampling.texts.settings import infill_settings

TASK = "joint-fill-mask"
Base: Any = Pipeline  # its own annotations fit no pipeline that returns lists


class JointFillMaskPipeline(Base):
    """Fill all gaps of a text together, with the probability of each filling.

    Each filling is a dictionary with the keys of transformers' own fill-mask: `score`, its
    probability, `sequence`, the text, and lists of all its tokens, `token` and `token_str`; also
    its `energy`. The fillings are those of `softbeam.infill`, which describes the gaps and laws;
    of a list of texts, each is filled as if it were alone.

    Args:
        top_k: the number of fillings to return, 5 by default.
        method: how to find them; by default auto: all are listed if there are at most 10,000, and
            `score` is then exact. Otherwise chains draw samples, and `score` is a share of these.
        samples: the number of samples.
        settings: fields of `SamplingConfig`, as `energy`, `pieces`, `temperature`, `chains`,
            `burn_in` or `seed`.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_feature_extractor = False

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.mlm = HfMaskedLM(self.model, self.tokenizer)

    def _sanitize_parameters(
        self, top_k: int | None = None, **settings: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        check_range("top_k", top_k, least=1)
        infill_settings({k: v for k, v in settings.items() if k not in ("method", "samples")})
        return {}, settings, {} if top_k is None else {"top_k": top_k}

    def preprocess(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _forward(self, inputs: dict[str, Any], **settings: Any) -> dict[str, Any]:
        texts = inputs["text"]
        alone = isinstance(texts, str)
        rows = [
            [
                {
                    "score": filling.share,
                    "token": self.tokenizer.convert_tokens_to_ids(filling.tokens),
                    "token_str": filling.tokens,
                    "sequence": filling.text,
                    "energy": filling.energy,
                }
                for filling in infill(self.mlm, text, **{"method": "auto"} | settings)
            ]
            for text in ([texts] if alone else texts)
        ]
        return {"fillings": rows[0] if alone else rows}

    def postprocess(self, outputs: dict[str, Any], top_k: int = 5) -> list[dict[str, Any]]:
        return sorted(outputs["fillings"], key=lambda each: -each["score"])[:top_k]

    def save_pretrained(self, save_directory: Any, **options: Any) -> None:
        """Save the model and its tokenizer, which need no code of softbeam."""
        self.model.save_pretrained(save_directory, **options)
        self.tokenizer.save_pretrained(save_directory, **options)


def register() -> None:
    """Make the task known to `transformers.pipeline`; a second call changes nothing."""
    if TASK not in PIPELINE_REGISTRY.supported_tasks:
        model = transformers.AutoModelForMaskedLM
        PIPELINE_REGISTRY.register_pipeline(
            TASK, JointFillMaskPipeline, pt_model=model, type="text"
        )
