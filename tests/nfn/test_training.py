"""Training: a step lowers the loss, members train as if alone, and a recorded step trains like an eager one."""

import copy

import pytest
import torch

from nfn import MLPPredictor, Predictor, PredictorEnsemble, StatNN, TrainingStep, TransformerNFN
from tests.nfn.conftest import ODD_SPECS, weights_of
from zoo import MNIST, TransformerWeights

KINDS = [TransformerNFN, MLPPredictor, StatNN]


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss(kind: type[Predictor]):
    spec = ODD_SPECS[0]
    weights = weights_of(spec, 16)
    accuracy = torch.linspace(0.1, 0.9, 16)
    model = kind(spec)
    model.fit_scale(weights)
    step = TrainingStep(model, learning_rate=3e-3)
    losses = [float(step(weights.flat(), accuracy)) for _ in range(60)]
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own_batches", [False, True])
def test_ensemble_trains_each_member_as_if_alone(kind: type[Predictor], own_batches: bool):
    spec = ODD_SPECS[0]
    members = [kind(spec, generator=torch.Generator().manual_seed(seed)).double() for seed in range(3)]
    members[0].fit_scale(TransformerWeights.from_flat(spec, weights_of(spec, 8).flat().double()))
    flat = torch.stack([weights_of(spec, 8, seed).flat().double() for seed in range(3)])
    accuracy = torch.rand(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if not own_batches:
        flat, accuracy = flat[0], accuracy[0]
    ensemble = PredictorEnsemble(copy.deepcopy(members))
    together = TrainingStep(ensemble)
    alone = [TrainingStep(member) for member in members]
    for number in range(4):
        for step in (together, *alone):
            step.set_learning_rate(1e-3 * (number + 1))
        losses = together(flat, accuracy)
        for i, step in enumerate(alone):
            own = (flat[i], accuracy[i]) if own_batches else (flat, accuracy)
            torch.testing.assert_close(losses[i], step(*own), rtol=1e-9, atol=1e-9)
    for i, member in enumerate(members):
        found = ensemble.member(i).state_dict()
        torch.testing.assert_close(found, member.state_dict(), rtol=1e-8, atol=1e-8)


def test_ensemble_and_step_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="all of the same architecture"):
        PredictorEnsemble([StatNN(MNIST), MLPPredictor(MNIST)])
    with pytest.raises(ValueError, match="at least one predictor"):
        PredictorEnsemble([])
    ensemble = PredictorEnsemble([StatNN(MNIST)] * 2)
    wrong = TransformerWeights.from_flat(MNIST, weights_of(MNIST).flat().unflatten(0, (3, 2)))
    with pytest.raises(ValueError, match=r"reads checkpoints \[batch\] or \[2, batch\], got \[3, 2\]"):
        ensemble.logits(wrong)
    step = TrainingStep(StatNN(MNIST))
    with pytest.raises(ValueError, match=r"one accuracy, got weights \[6, 18506\] and accuracies \[5\]"):
        step(weights_of(MNIST).flat(), torch.rand(5))
    with pytest.raises(ValueError, match="only a CUDA device can record a graph, and the model is on cpu"):
        TrainingStep(StatNN(MNIST), graph=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_recorded_step_trains_like_the_eager_one(kind: type[Predictor], seeds: int):
    def build() -> Predictor | PredictorEnsemble:
        members = [kind(MNIST, generator=torch.Generator().manual_seed(seed)).cuda() for seed in range(seeds)]
        return members[0] if seeds == 1 else PredictorEnsemble(members)

    batches = [
        (
            weights_of(MNIST, 16, seed).flat().cuda(),
            torch.rand(16, generator=torch.Generator().manual_seed(seed)).cuda(),
        )
        for seed in range(6)
    ]
    graphed, eager = TrainingStep(build(), graph=True), TrainingStep(build(), graph=False)
    for number, batch in enumerate(batches):
        for step in (graphed, eager):
            step.set_learning_rate(1e-4 * (number + 1))
        torch.testing.assert_close(graphed(*batch), eager(*batch), rtol=1e-3, atol=1e-4)
    for a, b in zip(graphed.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)
    with pytest.raises(ValueError, match="a recorded step takes batches of shape"):
        graphed(batches[0][0][:8], batches[0][1][:8])
