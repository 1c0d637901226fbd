"""Neural functional networks that respect the symmetries of a transformer's weights, their baselines, and proof."""

from nfn import testing
from nfn.ensemble import PredictorEnsemble
from nfn.equivariant import EquivariantLayer
from nfn.features import flat_features
from nfn.group import GroupElement
from nfn.invariant import InvariantLayer
from nfn.matching import Match, find_group_element, match_weights
from nfn.predictors import MLPPredictor, Predictor, StatNN, TransformerNFN
from nfn.storage import load_predictor, save_predictor
from nfn.training import TrainingStep

__all__ = [
    "EquivariantLayer",
    "GroupElement",
    "InvariantLayer",
    "MLPPredictor",
    "Match",
    "Predictor",
    "PredictorEnsemble",
    "StatNN",
    "TrainingStep",
    "TransformerNFN",
    "find_group_element",
    "flat_features",
    "load_predictor",
    "match_weights",
    "save_predictor",
    "testing",
]
