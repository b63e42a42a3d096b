from .catalogue import load_mlm as load_mlm, load_seq2seq as load_seq2seq
from .conditional_masked import ConditionalMlm as ConditionalMlm
from .gru import GruSeq2Seq as GruSeq2Seq
from .hollow import HollowMlm as HollowMlm
from .huggingface.causal import HfCausalLM as HfCausalLM
from .huggingface.masked import HfMaskedLM as HfMaskedLM
from .huggingface.prefixes import HfPrefixLM as HfPrefixLM
from .huggingface.seq2seq import HfSeq2Seq as HfSeq2Seq
from .layers import TransformerShape as TransformerShape
from .lstm import Seq2Seq as Seq2Seq
from .masked import TransformerMlm as TransformerMlm
from .protein_mpnn import BackboneMlm as BackboneMlm
from .random_field import BiLstmMrf as BiLstmMrf
from .specs import (
    Cmlm as Cmlm,
    HfEncoder as HfEncoder,
    Lstm as Lstm,
    Model as Model,
    Transformer as Transformer,
)
from .transformer import TransformerSeq2Seq as TransformerSeq2Seq
