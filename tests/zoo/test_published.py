"""The flat layout: the meaning of every stored weight vector."""

import copy
import hashlib
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import zoo
from tests.fabricated import TINY_PHOTOS
from zoo.transformer.spec import TransformerSpec, spec_for

GOLDEN = Path(__file__).parent / "golden" / "layout.json"


@pytest.mark.parametrize(("spec", "parameters"), [(zoo.MNIST, 18_506), (zoo.AGNEWS, 17_764)])
def test_number_of_parameters_is_the_papers(spec: TransformerSpec, parameters: int) -> None:
    model = zoo.build_model(spec, torch.zeros(parameters))
    assert spec.num_parameters == parameters
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == parameters


@pytest.mark.parametrize("spec", [zoo.MNIST, zoo.AGNEWS], ids=lambda spec: spec.task)
def test_layout_is_the_frozen_one(spec: TransformerSpec) -> None:
    """Names, shapes and offsets, and the bytes that a known state_dict becomes, never change."""
    golden = json.loads(GOLDEN.read_text())[spec.task]
    assert [[name, list(slot.shape), slot.offset] for name, slot in spec.tensors.items()] == golden["tensors"]
    state = {
        name: (torch.arange(slot.size) % 251 - 125 + index).to(torch.float32).view(slot.shape) / 64
        for index, (name, slot) in enumerate(spec.tensors.items())
    }
    flat = zoo.TransformerWeights.from_state_dict(spec, state).flat()
    assert hashlib.sha256(flat.numpy().astype("<f4").tobytes()).hexdigest() == golden["sha256"]


def test_components_cover_the_vector_without_overlap() -> None:
    for spec in (zoo.MNIST, zoo.AGNEWS):
        parts = list(spec.components.values())
        assert parts[0].start == 0
        assert parts[-1].stop == spec.num_parameters
        assert all(left.stop == right.start for left, right in pairwise(parts))
    assert "embedding" not in zoo.AGNEWS.components


def test_spec_survives_json() -> None:
    for spec in (zoo.MNIST, zoo.AGNEWS, TINY_PHOTOS):
        assert TransformerSpec(**json.loads(json.dumps(spec.to_dict()))) == spec
        assert copy.deepcopy(spec) == spec


def test_one_channel_and_no_residual_connections_are_left_out() -> None:
    assert list(zoo.MNIST.to_dict())[-1] == "blocks"
    assert TINY_PHOTOS.to_dict()["channels"] == 3
    assert TINY_PHOTOS.to_dict()["residual"] is True


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"heads": -1}, {"patch_size": 4, "channels": 0}])
def test_spec_refuses_what_is_not_a_dimension(wrong: dict) -> None:
    with pytest.raises(ValueError, match=f"{list(wrong)[-1]} must be a whole number of at least 1"):
        TransformerSpec(**{"task": "mnist", "classes": 10, "tokens": 49, **wrong})


def test_channels_without_patches_are_refused() -> None:
    with pytest.raises(ValueError, match="channels are those of images, which need a patch_size: got 3 without one"):
        TransformerSpec("news", classes=4, tokens=64, channels=3)


def test_unknown_task_is_named() -> None:
    with pytest.raises(ValueError, match="unknown task 'cifar': the zoo has mnist and agnews"):
        spec_for("cifar")


def test_spec_refuses_more_than_any_small_transformer_has() -> None:
    """The count that is made without a list of tensors is also right."""
    for spec in (zoo.MNIST, zoo.AGNEWS, TINY_PHOTOS):
        assert spec.num_parameters == sum(slot.size for slot in spec.tensors.values())
    for wrong in ({"blocks": 10**12}, {"dim": 10**9}):
        with pytest.raises(ValueError, match="is not a small one"):
            TransformerSpec(**{"task": "mnist", "classes": 10, "tokens": 49, **wrong})
