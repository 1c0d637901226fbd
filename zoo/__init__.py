"""The zoo: its transformers, their weights and their data."""

from zoo.evaluation import Evaluation, evaluate
from zoo.loading import load_dataset
from zoo.model import ZooTransformer, build_model
from zoo.reader import ZooReader
from zoo.reader import open_zoo as open
from zoo.spec import AGNEWS, MNIST, TransformerSpec
from zoo.stream import CheckpointStream
from zoo.weights import BlockWeights, TransformerWeights

__all__ = [
    "AGNEWS",
    "MNIST",
    "BlockWeights",
    "CheckpointStream",
    "Evaluation",
    "TransformerSpec",
    "TransformerWeights",
    "ZooReader",
    "ZooTransformer",
    "build_model",
    "evaluate",
    "load_dataset",
    "open",
]
