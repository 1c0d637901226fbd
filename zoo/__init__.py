"""The zoo: its transformers, their weights and their data."""

from typing import TYPE_CHECKING

from zoo.lazy_names import lazy_names

if TYPE_CHECKING:
    from zoo.reading.loading import load_dataset
    from zoo.reading.reader import ZooReader
    from zoo.reading.reader import open_zoo as open
    from zoo.reading.stream import CheckpointStream
    from zoo.tasks.evaluation import Evaluation, evaluate
    from zoo.tasks.language import generate
    from zoo.transformer.model import ZooTransformer, build_model
    from zoo.transformer.spec import AGNEWS, MNIST, SHAKESPEARE, TransformerSpec
    from zoo.transformer.weights import BlockWeights, TransformerWeights

__all__, __getattr__ = lazy_names(__name__, __file__)
