from . import (
    data as data,
    exact as exact,
    models as models,
    objectives as objectives,
    sampling as sampling,
    schedules as schedules,
    search as search,
    training as training,
    types as types,
)
from .errors import UserError as UserError
from .models.catalogue import load_mlm as load_mlm
from .objectives.likelihood import CrossEntropy as CrossEntropy
from .objectives.scheduled_sampling import ScheduledSampling as ScheduledSampling
from .objectives.soft_beam import DirectLoss as DirectLoss
from .sampling.certificates import certify as certify
from .sampling.texts.api import (
    Samples as Samples,
    infill as infill,
    sample as sample,
    score as score,
)
from .sampling.texts.settings import SamplingConfig as SamplingConfig
from .search.decoders import LocallyNormalized as LocallyNormalized
from .search.hard import beam_search as beam_search, greedy as greedy
from .search.soft.decode import soft_beam_decode as soft_beam_decode
from .search.soft.loop import soft_beam_loss as soft_beam_loss
from .training import hf as hf
from .training.api import train as train
from .training.huggingface import (
    SearchAwareTrainer as SearchAwareTrainer,
    search_aware_loss as search_aware_loss,
)
from .training.runs import Run as Run, load_run as load_run
from .types import (
    Decoder as Decoder,
    Energy as Energy,
    Kernel as Kernel,
    MaskedLM as MaskedLM,
    TextModel as TextModel,
)

__version__: str
