from . import hf as hf
from .api import train as train
from .cards import Figure as Figure
from .config import (
    RunConfig as RunConfig,
    Stage as Stage,
    from_yaml as from_yaml,
    to_yaml as to_yaml,
)
from .huggingface import (
    SearchAwareTrainer as SearchAwareTrainer,
    search_aware_loss as search_aware_loss,
)
from .masked_lm import train_mlm as train_mlm
from .recipes import RECIPES as RECIPES
from .runs import (
    Run as Run,
    load_run as load_run,
)
from .searches import (
    AncestralSample as AncestralSample,
    Beam as Beam,
    Greedy as Greedy,
    MaskPredict as MaskPredict,
    Search as Search,
    SoftBeamSearch as SoftBeamSearch,
)
