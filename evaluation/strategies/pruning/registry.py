"""The pruners by name."""

from __future__ import annotations

from evaluation.strategies.pruning.attention import FastV, PyramidDrop
from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.cdpruner import CDPruner
from evaluation.strategies.pruning.dart import Dart
from evaluation.strategies.pruning.divprune import DivPrune
from evaluation.strategies.pruning.querystream import QueryStream
from evaluation.strategies.pruning.sparsevlm import SparseVLM
from evaluation.strategies.pruning.vidcom2 import VidCom2

PRUNERS: dict[str, Pruner] = {
    pruner.name: pruner
    for pruner in (
        FastV(),
        PyramidDrop(),
        SparseVLM(),
        DivPrune(),
        CDPruner(),
        Dart(),
        VidCom2(),
        QueryStream(),
    )
}
