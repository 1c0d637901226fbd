"""Neural functional networks that respect the symmetries of a transformer's weights, baselines, and symmetry tests."""

from typing import TYPE_CHECKING

from zoo.lazy_names import lazy_names

if TYPE_CHECKING:
    from nfn import testing
    from nfn.layers.polynomial import EquivariantLayer, InvariantLayer
    from nfn.predictors.baselines import MLPPredictor, RawMomentsPredictor, StatNN
    from nfn.predictors.gauge_nfn import GaugeNFN, InvariantNFN, ResponseNFN
    from nfn.predictors.predictor import Predictor
    from nfn.predictors.probes import HiddenProbeNFN, ProbeGenNFN, ProbeNFN
    from nfn.predictors.quasi_nfn import QuasiNFN
    from nfn.predictors.storage import Prediction, Pretrained, load_predictor, load_pretrained, save_predictor
    from nfn.predictors.transformer_nfn import TransformerNFN
    from nfn.symmetry.alignment import Alignment, align, interpolate, made_up_inputs, merge
    from nfn.symmetry.canonical import canonicalize
    from nfn.symmetry.full_group import FullGroupElement
    from nfn.symmetry.full_matching import match_weights
    from nfn.symmetry.group import GroupElement
    from nfn.symmetry.invariant_features import invariant_features, named_features
    from nfn.symmetry.invariants import Invariants, invariants
    from nfn.symmetry.paper_matching import Match, find_group_element, match_paper_group
    from nfn.symmetry.parts import available_parts
    from nfn.training import PredictorEnsemble, TrainingStep
    from zoo.transformer.circuits import Circuits, circuits

__all__, __getattr__ = lazy_names(__name__, __file__)
