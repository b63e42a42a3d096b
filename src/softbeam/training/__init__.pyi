from .config import (
    RunConfig as RunConfig,
)
from .config import (
)
from .config import (
    Stage as Stage,
)
from .config import (
    from_yaml as from_yaml,
)
from .config import (
    to_yaml as to_yaml,
)
from .huggingface import (
    SearchAwareTrainer as SearchAwareTrainer,
)
from .huggingface import (
    search_aware_loss as search_aware_loss,
)
from .many import train as train
from .masked_lm import train_mlm as train_mlm
from .recipes import RECIPES as RECIPES
from .runs import (
    Run as Run,
)
from .runs import (
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
