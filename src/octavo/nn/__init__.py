"""Layers: objects that declare weights when made and emit ops when called. They never ask where they will run."""

from octavo.nn.attention import Attention as Attention
from octavo.nn.attention import AttentionShape as AttentionShape
from octavo.nn.attention import QKNorm as QKNorm
from octavo.nn.build import Build as Build
from octavo.nn.decoder import emit_decoder as emit_decoder
from octavo.nn.embedding import Embedding as Embedding
from octavo.nn.embedding import Head as Head
from octavo.nn.experts import ExpertsShape as ExpertsShape
from octavo.nn.experts import SparseMLP as SparseMLP
from octavo.nn.linear import Linear as Linear
from octavo.nn.mlp import GatedMLP as GatedMLP
from octavo.nn.norm import RMSNorm as RMSNorm
