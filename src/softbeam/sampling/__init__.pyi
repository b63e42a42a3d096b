from .certificates import (
    Certificate as Certificate,
)
from .certificates import (
    certify as certify,
)
from .chains import (
    ConstantBlocks as ConstantBlocks,
)
from .chains import (
    LinearBlocks as LinearBlocks,
)
from .chains import (
    Plan as Plan,
)
from .chains import (
    RandomBlocks as RandomBlocks,
)
from .chains import (
    Trace as Trace,
)
from .chains import (
    fill_greedily as fill_greedily,
)
from .chains import (
    fill_in_turn as fill_in_turn,
)
from .chains import (
    fill_randomly as fill_randomly,
)
from .chains import (
    run as run,
)
from .chains import (
    trace as trace,
)
from .compatibility import cross_ratios as cross_ratios
from .diagnostics import (
    bulk_ess as bulk_ess,
)
from .diagnostics import (
    split_rhat as split_rhat,
)
from .energies import (
    Constrained as Constrained,
)
from .energies import (
    LocalEnergy as LocalEnergy,
)
from .energies import (
    RawEnergy as RawEnergy,
)
from .energies import (
    StridedEnergy as StridedEnergy,
)
from .energies import (
    Tempered as Tempered,
)
from .energies import (
    WeightedSum as WeightedSum,
)
from .fast import fast_metropolis_hastings as fast_metropolis_hastings
from .importance import log_partition as log_partition
from .kernels import (
    degenerate_gibbs as degenerate_gibbs,
)
from .kernels import (
    delayed_acceptance as delayed_acceptance,
)
from .kernels import (
    exact_gibbs as exact_gibbs,
)
from .kernels import (
    metropolis_hastings as metropolis_hastings,
)
from .kernels import (
    replica_exchange as replica_exchange,
)
from .mask_predict import mask_predict as mask_predict
from .proposals import (
    MaskedConditionals as MaskedConditionals,
)
from .proposals import (
    UniformProposals as UniformProposals,
)
from .terms import (
    EditDistance as EditDistance,
)
from .terms import (
    HammingDistance as HammingDistance,
)
from .terms import (
    PhraseCount as PhraseCount,
)
from .texts.settings import SamplingConfig as SamplingConfig
from .tiny import TinyMLM as TinyMLM
