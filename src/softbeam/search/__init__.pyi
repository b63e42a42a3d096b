from .constrained import constrained_beam_search as constrained_beam_search
from .decoders import (
    Forbidding as Forbidding,
    LocallyNormalized as LocallyNormalized,
    forced_scores as forced_scores,
)
from .hard import (
    ancestral_sample as ancestral_sample,
    beam_search as beam_search,
    greedy as greedy,
)
from .live import live_beam_search as live_beam_search
from .relaxations import (
    gumbel_softmax as gumbel_softmax,
    soft_argmax as soft_argmax,
    soft_topk as soft_topk,
)
from .soft.beam import (
    Relaxation as Relaxation,
    SoftBeam as SoftBeam,
)
from .soft.decode import soft_beam_decode as soft_beam_decode
from .soft.form import Form as Form
from .soft.loop import (
    soft_beam as soft_beam,
    soft_beam_loss as soft_beam_loss,
    soft_beam_max as soft_beam_max,
    soft_beams as soft_beams,
)
from .soft.step import soft_beam_step as soft_beam_step
from .tracked import tracked_beam as tracked_beam
