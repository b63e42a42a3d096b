from .certificates import (
    Certificate as Certificate,
    certify as certify,
)
from .chain_rule import ChainEnergy as ChainEnergy, LeftToRight as LeftToRight
from .chains import (
    ConstantBlocks as ConstantBlocks,
    LinearBlocks as LinearBlocks,
    Plan as Plan,
    RandomBlocks as RandomBlocks,
    Trace as Trace,
    fill_greedily as fill_greedily,
    fill_in_turn as fill_in_turn,
    fill_randomly as fill_randomly,
    run_chains as run_chains,
    trace as trace,
)
from .compatibility import cross_ratios as cross_ratios
from .diagnostics import (
    bulk_ess as bulk_ess,
    split_rhat as split_rhat,
)
from .energies import (
    Constrained as Constrained,
    LocalEnergy as LocalEnergy,
    RawEnergy as RawEnergy,
    Tempered as Tempered,
    WeightedSum as WeightedSum,
)
from .fast import fast_metropolis_hastings as fast_metropolis_hastings
from .importance import bracket as bracket, log_partition as log_partition
from .informed import informed_metropolis_hastings as informed_metropolis_hastings
from .kernels import (
    degenerate_gibbs as degenerate_gibbs,
    exact_gibbs as exact_gibbs,
    metropolis_hastings as metropolis_hastings,
    replica_exchange as replica_exchange,
)
from .lengths import length_metropolis_hastings as length_metropolis_hastings
from .masked_search import mask_predict as mask_predict
from .power import power_metropolis_hastings as power_metropolis_hastings
from .proposals import (
    MaskedConditionals as MaskedConditionals,
    UniformProposals as UniformProposals,
)
from .strided import StridedEnergy as StridedEnergy
from .terms import (
    EditDistance as EditDistance,
    HammingDistance as HammingDistance,
    LengthEnergy as LengthEnergy,
    PhraseCount as PhraseCount,
    RepeatedPhrases as RepeatedPhrases,
)
from .texts.api import Samples as Samples, infill as infill, sample as sample, score as score
from .texts.settings import SamplingConfig as SamplingConfig
from .tiny import TinyMLM as TinyMLM, every_text as every_text
from .unsmoothing import Unsmoothed as Unsmoothed
from .variants import (
    masked_marginals as masked_marginals,
    mutant_marginals as mutant_marginals,
    wild_type_marginals as wild_type_marginals,
)
