"""The zoo: its transformers, their weights and their data."""

from zoo.evaluation import Evaluation, evaluate
from zoo.model import ZooTransformer, build_model
from zoo.spec import AGNEWS, MNIST, TransformerSpec
from zoo.weights import BlockWeights, TransformerWeights

__all__ = [
    "AGNEWS",
    "MNIST",
    "BlockWeights",
    "Evaluation",
    "TransformerSpec",
    "TransformerWeights",
    "ZooTransformer",
    "build_model",
    "evaluate",
]
