"""Training: a step lowers the loss, members train as if alone, and a recorded step trains like an eager one."""

import copy
import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nfn import (
    GaugeNFN,
    HiddenProbeNFN,
    MLPPredictor,
    Predictor,
    PredictorEnsemble,
    ProbeGenNFN,
    ProbeNFN,
    QuasiNFN,
    RawMomentsPredictor,
    StatNN,
    TrainingStep,
    TransformerNFN,
)
from tests.nfn.conftest import ODD_SPECS, weights_of
from zoo import MNIST, TransformerSpec, TransformerWeights

KINDS = [
    TransformerNFN,
    MLPPredictor,
    StatNN,
    GaugeNFN,
    RawMomentsPredictor,
    ProbeNFN,
    pytest.param(HiddenProbeNFN, marks=pytest.mark.long),
    pytest.param(ProbeGenNFN, marks=pytest.mark.long),
    pytest.param(QuasiNFN, marks=pytest.mark.long),
]


def members_of(kind: type[Predictor], spec: TransformerSpec, count: int) -> list[Predictor]:
    """Predictors of different seeds, with the buffers of the first."""
    members = [kind(spec, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]
    for member in members:
        member.load_state_dict(dict(members[0].named_buffers()), strict=False)
    return members


def plain_step(predictor: Predictor, optimizer: torch.optim.Optimizer, flat: Tensor, accuracy: Tensor) -> Tensor:
    """A training step in plain torch, for one predictor without dropout."""
    optimizer.zero_grad()
    votes = predictor.votes(predictor.inputs(TransformerWeights.from_flat(predictor.spec, flat)))
    loss = F.binary_cross_entropy_with_logits(votes, accuracy[:, None].expand_as(votes))
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss(kind: type[Predictor]):
    spec = ODD_SPECS[0]
    weights = weights_of(spec, 16)
    predictor = kind(spec)
    predictor.fit_scale(weights)
    ensemble = PredictorEnsemble([predictor])
    step = TrainingStep(ensemble, weights.flat(), torch.linspace(0.1, 0.9, 16), batch_size=16, learning_rate=3e-3)
    step.set_batches(torch.arange(16))
    first = float(step())
    assert any(float(step()) < first - 0.02 for _ in range(60))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own_batches", [False, True])
def test_ensemble_trains_each_member_as_if_alone(kind: type[Predictor], own_batches: bool):
    spec = ODD_SPECS[0]
    members = [member.double() for member in members_of(kind, spec, 3)]
    for member in members:
        member.dropout = 0.0
        member.fit_scale(TransformerWeights.from_flat(spec, weights_of(spec, 8).flat().double()))
    flat = weights_of(spec, 24).flat().double()
    accuracy = torch.rand(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    index = torch.arange(24).view(3, 8) if own_batches else torch.arange(8)
    ensemble = PredictorEnsemble(copy.deepcopy(members))
    step = TrainingStep(ensemble, flat, accuracy, batch_size=8)
    step.set_batches(index)
    optimizers = [torch.optim.Adam(member.parameters()) for member in members]
    for number in range(4):
        rates = 1e-3 * (number + 1) * torch.tensor([1.0, 0.5, 2.0])
        step.set_rates(rates)
        losses = step()
        for i, (member, optimizer) in enumerate(zip(members, optimizers, strict=True)):
            optimizer.param_groups[0]["lr"] = float(rates[i])
            rows = index[i] if own_batches else index
            alone = plain_step(member, optimizer, flat[rows], accuracy[rows])
            torch.testing.assert_close(losses[i], alone, rtol=1e-9, atol=1e-9)
    for i, member in enumerate(members):
        torch.testing.assert_close(ensemble.member(i).state_dict(), member.state_dict(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_step_makes_no_tensor_away_from_the_weights(kind: type[Predictor]):
    """A step that is recorded on a GPU may copy nothing from the host: here the default device holds no numbers."""
    weights = weights_of(ODD_SPECS[0], 8)
    predictor = kind(ODD_SPECS[0])
    predictor.fit_scale(weights)
    step = TrainingStep(PredictorEnsemble([predictor]), weights.flat(), torch.rand(8), batch_size=8)
    with torch.device("meta"):
        step.gradients()


def test_dropout_is_drawn_anew_for_every_step_from_the_seed_of_the_member():
    spec, weights = ODD_SPECS[0], weights_of(ODD_SPECS[0], 8)
    predictor = GaugeNFN(spec, generator=torch.Generator().manual_seed(0))
    steps = [
        TrainingStep(
            PredictorEnsemble([predictor] * len(seeds)), weights.flat(), torch.rand(8), batch_size=8, seeds=seeds
        )
        for seeds in ([5], [3, 5])
    ]
    drawn = []
    for step in steps:
        step.draw_dropout()
        assert step.keep is not None
        drawn.append(step.keep.clone())
        share = float((step.keep == 0).double().mean())
        assert abs(share - predictor.dropout) < 0.02
        step.draw_dropout()
        assert not torch.equal(step.keep, drawn[-1])
    assert torch.equal(drawn[0][0], drawn[1][1])
    assert not torch.equal(drawn[1][0], drawn[1][1])
    one_by_one = torch.Generator().manual_seed(9)
    step = TrainingStep(PredictorEnsemble([predictor]), weights.flat(), torch.rand(8), batch_size=8, seeds=[9])
    for _ in range(20):
        step.draw_dropout()
        assert step.keep is not None
        kept = torch.rand(step.keep.shape[1:], generator=one_by_one) >= predictor.dropout
        assert torch.equal(step.keep[0], kept / (1 - predictor.dropout))
    votes = predictor.votes(predictor.inputs(weights), drawn[0][0])
    assert not torch.allclose(votes.mean(-1), predictor.logits(weights))


def test_a_step_is_freed_when_nothing_refers_to_it():
    spec, weights = ODD_SPECS[0], weights_of(ODD_SPECS[0], 8)
    ensemble = PredictorEnsemble([GaugeNFN(spec, generator=torch.Generator().manual_seed(0))])
    step = TrainingStep(ensemble, weights.flat(), torch.rand(8), batch_size=8)
    step()
    freed = weakref.ref(step)
    del step
    assert freed() is None, "its inputs and its CUDA graph would stay until Python looks for cycles"


def test_rows_of_weight_zero_do_not_count():
    spec = ODD_SPECS[0]
    predictor = StatNN(spec).double()
    flat, accuracy = weights_of(spec, 8).flat().double(), torch.linspace(0.1, 0.9, 8, dtype=torch.float64)
    ensemble = PredictorEnsemble([predictor])
    step = TrainingStep(ensemble, flat, accuracy, batch_size=8)
    step.set_batches(torch.arange(8), torch.tensor([0.25] * 4 + [0.0] * 4))
    loss = step()
    alone = plain_step(predictor, torch.optim.Adam(predictor.parameters()), flat[:4], accuracy[:4])
    torch.testing.assert_close(loss[0], alone, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ensemble.member(0).state_dict(), predictor.state_dict(), rtol=1e-8, atol=1e-8)


def test_members_are_read_a_few_rows_at_a_time_and_have_rates_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nfn.training.READ_AT_ONCE", 4)
    members = members_of(StatNN, MNIST, 3)
    ensemble, weights = PredictorEnsemble(members), weights_of(MNIST, 10)
    expected = torch.stack([member.logits(weights) for member in members]).detach()
    torch.testing.assert_close(ensemble.read(ensemble.inputs(weights.flat())), expected)
    step = TrainingStep(ensemble, weights.flat(), torch.rand(10), batch_size=5)
    step.set_batches(torch.stack([torch.arange(5), torch.arange(5), torch.arange(5, 10)]))
    step.set_rates(torch.tensor([0.0, 0.0, 1e-3]))
    before = ensemble.parameters.detach().clone()
    step()
    after = ensemble.parameters.detach()
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2], before[2])
    torch.testing.assert_close(ensemble.member(2, before[2]).state_dict(), members[2].state_dict())


def test_ensemble_and_step_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="all of the same architecture"):
        PredictorEnsemble([StatNN(MNIST), MLPPredictor(MNIST)])
    with pytest.raises(ValueError, match="at least one predictor"):
        PredictorEnsemble([])
    with pytest.raises(ValueError, match="give all of them the buffers of one"):
        PredictorEnsemble([GaugeNFN(MNIST, generator=torch.Generator().manual_seed(seed)) for seed in range(2)])
    ensemble, flat = PredictorEnsemble([StatNN(MNIST)] * 2), weights_of(MNIST).flat()
    with pytest.raises(ValueError, match=r"reads checkpoints \[n, d\], got \[3, 2, 18506\]"):
        ensemble.inputs(flat.unflatten(0, (3, 2)))
    with pytest.raises(ValueError, match=r"one target, got weights \[6, 18506\] and targets \[5\]"):
        TrainingStep(ensemble, flat, torch.rand(5), batch_size=2)
    with pytest.raises(ValueError, match="at least one row, got batch_size 0"):
        TrainingStep(ensemble, flat, torch.rand(6), batch_size=0)
    with pytest.raises(ValueError, match="only a CUDA device can record a graph, and the ensemble is on cpu"):
        TrainingStep(ensemble, flat, torch.rand(6), batch_size=2, graph=True)
    with pytest.raises(ValueError, match="seeds must have one for each of the 2 members, got 1"):
        TrainingStep(ensemble, flat, torch.rand(6), batch_size=2, seeds=[5])
    step = TrainingStep(ensemble, flat, torch.rand(6), batch_size=4)
    with pytest.raises(ValueError, match=r"takes batches of shape \[2, 4\] or \[4\], got \[2, 3\]: fill up"):
        step.set_batches(torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_recorded_step_trains_like_the_eager_one(kind: type[Predictor], seeds: int):
    flat = torch.cat([weights_of(MNIST, 16, seed).flat() for seed in range(6)]).cuda()
    accuracy = torch.rand(96, generator=torch.Generator().manual_seed(0)).cuda()

    def build(graph: bool) -> TrainingStep:
        ensemble = PredictorEnsemble(members_of(kind, MNIST, seeds), torch.device("cuda"))
        return TrainingStep(ensemble, flat, accuracy, batch_size=16, graph=graph)

    recorded, eager = build(True), build(False)
    for number, batch in enumerate(torch.arange(96).view(6, 16)):
        for step in (recorded, eager):
            step.set_batches(batch)
            step.set_rates(1e-4 * (number + 1))
        torch.testing.assert_close(recorded(), eager(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(recorded.ensemble.parameters, eager.ensemble.parameters, rtol=1e-2, atol=1e-4)
    with pytest.raises(ValueError, match="this step takes batches of shape"):
        recorded.set_batches(torch.arange(8))
