"""The zoo: its transformers, their weights and their data."""

from zoo.reading.loading import load_dataset
from zoo.reading.reader import ZooReader
from zoo.reading.reader import open_zoo as open
from zoo.reading.stream import CheckpointStream
from zoo.tasks.evaluation import Evaluation, evaluate
from zoo.transformer.model import ZooTransformer, build_model
from zoo.transformer.spec import AGNEWS, MNIST, TransformerSpec
from zoo.transformer.weights import BlockWeights, TransformerWeights

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
