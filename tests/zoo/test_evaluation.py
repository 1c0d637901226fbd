"""``zoo.evaluate``: one number per checkpoint, whatever the batch size."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import zoo
from tests.fabricated import fabricate_embedding, fabricate_shard, publish
from zoo.tasks.embedding import WordEmbedding
from zoo.tasks.evaluation import _find_embedding
from zoo.tasks.examples import Examples, TaskData, _normalize_pixels


def digits(count: int) -> TaskData:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    examples = Examples(images, labels)
    return TaskData(zoo.MNIST, examples, examples, "fabricated")


@pytest.fixture(scope="module")
def model() -> zoo.ZooTransformer:
    return zoo.build_model(
        zoo.MNIST, torch.randn(zoo.MNIST.num_parameters, generator=torch.Generator().manual_seed(0)) * 0.3
    )


def test_the_same_number_to_the_bit_at_every_batch_size(model: zoo.ZooTransformer) -> None:
    task = digits(333)
    results = {zoo.evaluate(model, task, batch_size=size) for size in (1, 7, 100, 250, 10_000)}
    assert len(results) == 1


def test_accuracy_and_loss_are_what_they_are_called(model: zoo.ZooTransformer) -> None:
    task = digits(130)
    with torch.no_grad():
        logits = model(_normalize_pixels(task.test.inputs)[:, None])
    accuracy, loss = zoo.evaluate(model, task)
    assert accuracy == pytest.approx(float((logits.argmax(dim=1) == task.test.labels).float().mean()))
    assert loss == pytest.approx(float(F.cross_entropy(logits, task.test.labels)), rel=1e-5)


def test_evaluation_leaves_the_mode_of_the_model_alone(model: zoo.ZooTransformer) -> None:
    model.train()
    zoo.evaluate(model, digits(5))
    assert model.training
    model.eval()


def test_agnews_is_read_from_its_files_and_embedding(tmp_path: Path) -> None:
    embedding = WordEmbedding.from_vectors(("good", "news"), torch.randn(2, 32))
    embedding.save(tmp_path / "embedding")
    (tmp_path / "ag_news").mkdir()
    for split in ("train", "test"):
        (tmp_path / "ag_news" / f"{split}.csv").write_text('"1","t","good news"\n"4","t","bad news"\n')
    model = zoo.build_model(zoo.AGNEWS, torch.randn(zoo.AGNEWS.num_parameters) * 0.3)
    result = zoo.evaluate(model, "agnews", data=tmp_path, embedding=tmp_path / "embedding")
    ids = torch.tensor([[2, 3], [1, 3]], dtype=torch.int32)
    loss = F.cross_entropy(model(*embedding(ids)), torch.tensor([0, 3])).detach()
    # a loss near zero is the difference of logits near ten: its error is theirs, not its own
    assert result.loss == pytest.approx(float(loss), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("zoo_of_it", [{}, {"zoo": "small-transformer-zoo"}], ids=["default", "named"])
def test_a_checkpoint_of_agnews_is_evaluated_with_the_embedding_of_its_zoo(tmp_path: Path, zoo_of_it: dict) -> None:
    (tmp_path / "ag_news").mkdir()
    for split in ("train", "test"):
        text = "".join(f'"{1 + row % 4}","t","oil prices rose on monday {row}"\n' for row in range(20))
        (tmp_path / "ag_news" / f"{split}.csv").write_text(text)
    reader = zoo.open("small-transformer-zoo", "agnews")
    model = zoo.build_model(reader.spec, reader.weights(0))
    found = zoo.evaluate(model, "agnews", data=tmp_path, **zoo_of_it)
    assert found == zoo.evaluate(model, "agnews", data=tmp_path, embedding=reader.embedding)


def test_another_zoo_has_another_embedding(tmp_path: Path) -> None:
    embedding = fabricate_embedding(zoo.AGNEWS)
    fabricate_shard(tmp_path / "runs", zoo.AGNEWS, count=20, embedding=embedding)
    publish(tmp_path / "runs", tmp_path / "mine")
    folder = _find_embedding(tmp_path / "mine", "agnews")
    assert folder is not None
    assert WordEmbedding.load(folder).sha256 == embedding.sha256


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("cifar", {}, "unknown task 'cifar'"),
        ("agnews", {"zoo": "nowhere"}, "agnews needs the frozen embedding .*no zoo called 'nowhere'.* zoo=NAME"),
        (digits(3), {"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_the_reason(
    model: zoo.ZooTransformer, task: str | TaskData, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        zoo.evaluate(model, task, **options)


def test_a_transformer_is_not_evaluated_on_the_other_task() -> None:
    with pytest.raises(ValueError, match="a transformer of agnews cannot be evaluated on mnist"):
        zoo.evaluate(zoo.build_model(zoo.AGNEWS, torch.zeros(zoo.AGNEWS.num_parameters)), digits(3))


def test_a_transformer_is_not_evaluated_on_classes_that_it_does_not_have() -> None:
    spec = replace(zoo.MNIST, classes=3)
    with pytest.raises(ValueError, match="a transformer of 3 classes cannot be evaluated on the class"):
        zoo.evaluate(zoo.build_model(spec, torch.zeros(spec.num_parameters)), digits(20))
