"""The fused engine on transformers with other numbers of tokens, classes and blocks than the paper's two.

Tiles without tokens, a last tile with padding, one block that is the first and the last; each variant at least once.
"""

from dataclasses import dataclass

import pytest
from fused_checks import MakeEngine, check_evaluation, check_gradients, check_two_epochs, config, initial_weights
from small_tasks import few_news, few_scans

from generation.fused.variants import VARIANTS, Variant
from zoo.tasks import TaskData
from zoo.transformer.spec import TransformerSpec

LARGE, MEDIUM, SMALL = VARIANTS


@dataclass(frozen=True)
class Shape:
    spec: TransformerSpec
    variant: Variant
    sides: tuple[int, int] | None = None  # of images

    def task(self, train: int, test: int) -> TaskData:
        return few_scans(train, test, self.spec, *self.sides) if self.sides else few_news(train, test, self.spec)


SHAPES = {
    "squares": Shape(TransformerSpec("squares", classes=7, tokens=36, patch_size=4, blocks=1), LARGE, (24, 24)),
    "strips": Shape(TransformerSpec("strips", classes=16, tokens=45, patch_size=4), MEDIUM, (20, 36)),
    "reviews": Shape(TransformerSpec("reviews", classes=14, tokens=40), SMALL),
    "titles": Shape(TransformerSpec("titles", classes=4, tokens=16, blocks=1), MEDIUM),
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@each_shape
def test_gradients_of_other_shapes(shape: Shape, engine: MakeEngine) -> None:
    task = shape.task(train=16, test=1)
    check_gradients(lambda run: engine([run], task, variant=shape.variant), task, dropout=0.2)


@each_shape
def test_evaluation_of_other_shapes(shape: Shape, engine: MakeEngine) -> None:
    task, run = shape.task(train=16, test=30), config(shape.spec.task)
    check_evaluation(engine([run], task, variant=shape.variant), task, initial_weights(task, run))


@pytest.mark.parametrize("name", ["squares", "titles"])
def test_two_epochs_of_one_block_follow_the_torch_engine(name: str, engine: MakeEngine) -> None:
    """The masks of every step are the torch engine's."""
    shape = SHAPES[name]
    task = shape.task(train=96, test=1)
    check_two_epochs(lambda configs: engine(configs, task, variant=shape.variant), task, ("sgd_momentum",))
