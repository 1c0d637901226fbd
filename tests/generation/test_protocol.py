"""The protocol: the paper's schedule, optimizers and names of runs."""

import math
from dataclasses import replace

import pytest
import torch
from torch import optim

from generation.protocol import Protocol, RunConfig
from generation.single import make_model, make_optimizer
from zoo.checked import checked
from zoo.format.hyperparameters import LATER, Hyperparameters
from zoo.format.recipe import seeds_by_policy
from zoo.transformer.spec import MNIST

RUN = RunConfig(task="mnist", optimizer="adam", learning_rate=1e-3, weight_decay=1e-6, init_std=0.1, dropout=0.1)


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [
        (0, 1e-3),
        (9, 1e-2),
        (10, 1e-2),
        (55, 1e-5 + (1e-2 - 1e-5) / 2),
        (99, 1e-5 + (1e-2 - 1e-5) * (1 + math.cos(math.pi * 89 / 90)) / 2),
    ],
)
def test_learning_rate_is_the_formula(epoch: int, rate: float) -> None:
    assert Protocol().learning_rate(1e-2, epoch) == pytest.approx(rate, rel=1e-12)


def test_learning_rate_is_what_torchs_schedulers_give() -> None:
    """Warm-up and cosine chained by epoch, as usual in torch."""
    optimizer = optim.SGD([torch.zeros(1, requires_grad=True)], lr=3e-2)
    warmup = optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, end_factor=1.0, total_iters=9)
    cosine = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90, eta_min=1e-5)
    for epoch in range(100):
        assert Protocol().learning_rate(3e-2, epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        (warmup if epoch < 10 else cosine).step()


def test_an_epoch_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="epoch 100 does not exist: this protocol has 100"):
        Protocol().learning_rate(1e-3, 100)


def test_checkpoints_are_half_three_quarters_and_all_of_the_epochs() -> None:
    assert Protocol().checkpoints == {"epoch_50": 50, "epoch_75": 75, "epoch_100": 100}
    assert Protocol().lasting(20).checkpoints == {"epoch_50": 10, "epoch_75": 15, "epoch_100": 20}
    assert Protocol().lasting(1).checkpoints == {"epoch_50": 1, "epoch_75": 1, "epoch_100": 1}


def test_chosen_checkpoints_are_taken_after_exactly_these_epochs() -> None:
    protocol = Protocol().lasting(20)
    chosen = replace(protocol, checkpoint_epochs=(1, 10, 20))
    assert chosen.checkpoints == {"epoch_1": 1, "epoch_10": 10, "epoch_20": 20}
    assert chosen.to_dict() == protocol.to_dict() | {"checkpoint_epochs": [1, 10, 20]}


def test_fields_that_the_first_zoos_did_not_record_are_left_out() -> None:
    recorded = {"epochs": 100, "warmup_epochs": 10, "batch_size": 128, "final_learning_rate": 1e-5}
    assert Protocol().to_dict() == recorded
    assert Protocol(crop_padding=0).to_dict() == recorded | {"crop_padding": 0}
    changed = [Protocol(crop_padding=0), Protocol(checkpoint_epochs=(50, 75, 100))]
    assert len({replace(RUN, protocol=protocol).run_id for protocol in (Protocol(), *changed)}) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup_epochs": 0}, "warmup_epochs must be a whole number from 1 to 10,000, got 0"),
        ({"warmup_epochs": 101}, "warm-up must take between 1 and all 100 epochs, got 101"),
        ({"crop_padding": -1}, "crop_padding must be a whole number from 0 to 8, got -1"),
        ({"crop_padding": 9}, "crop_padding must be a whole number from 0 to 8, got 9"),
        ({"checkpoint_epochs": ()}, r"must be an array of at least one value, .* got \(\)"),
        (
            {"checkpoint_epochs": (0, 10)},
            "checkpoint_epochs: each value must be .* from 1 to 10,000, got 0",
        ),
        ({"checkpoint_epochs": (10, 101)}, r"from 1 to 100, got \[10, 101\]"),
        ({"checkpoint_epochs": (20, 10)}, r"from 1 to 100, got \[20, 10\]"),
        ({"checkpoint_epochs": (10, 10)}, r"from 1 to 100, got \[10, 10\]"),
    ],
)
def test_a_protocol_that_cannot_be_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Protocol(), **change)


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("sgd", optim.SGD, {"momentum": 0, "nesterov": False, "dampening": 0}),
        ("sgd_momentum", optim.SGD, {"momentum": 0.9, "nesterov": False, "dampening": 0}),
        ("adam", optim.Adam, {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "decoupled_weight_decay": False}),
        ("rmsprop", optim.RMSprop, {"alpha": 0.99, "eps": 1e-8, "momentum": 0, "centered": False}),
    ],
)
def test_each_optimizer_has_the_papers_settings(name: str, kind: type, settings: dict) -> None:
    config = replace(RUN, optimizer=name)
    optimizer = make_optimizer(config, make_model(MNIST, config, torch.device("cpu")))
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {key: group[key] for key in settings} == settings
    assert group["weight_decay"] == 1e-6
    assert group["lr"] == 1e-3
    assert sum(parameter.numel() for parameter in group["params"]) == 18_506


def test_run_id_depends_on_everything_and_on_nothing_else() -> None:
    changes = {
        "task": "agnews",
        "optimizer": "sgd",
        "learning_rate": 2e-3,
        "weight_decay": 0.0,
        "init_std": 0.2,
        "dropout": 0.0,
        "train_fraction": 0.7,
        "seed": 1,
        "protocol": Protocol().lasting(20),
    }
    assert changes.keys() == RUN.to_dict().keys()
    ids = {RUN.run_id} | {replace(RUN, **{name: value}).run_id for name, value in changes.items()}
    assert len(ids) == len(changes) + 1
    assert replace(RUN).run_id == RUN.run_id == "24a72a885dbfee31"


def own_seed(run: RunConfig) -> int:
    (seed,) = seeds_by_policy("distinct", run.hyperparameters(), run.task)
    return seed


def test_a_hyperparameter_that_came_later_changes_no_id_where_it_has_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if dropout had come later."""
    plain, dropped = replace(RUN, dropout=0.0), RUN
    ids, seeds = (plain.run_id, dropped.run_id), (own_seed(plain), own_seed(dropped))
    monkeypatch.setitem(LATER, "dropout", 0.0)
    assert plain.to_dict() == {name: value for name, value in dropped.to_dict().items() if name != "dropout"}
    assert plain.run_id != ids[0]
    assert own_seed(plain) != seeds[0]
    assert (dropped.run_id, own_seed(dropped)) == (ids[1], seeds[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adamw"}, "optimizer must be one of adam, rmsprop, sgd, sgd_momentum, got 'adamw'"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number above 0, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0, got -1.0"),
        ({"dropout": 1.0}, "dropout must be a number from 0 to 0.99, got 1.0"),
        ({"train_fraction": 0.0}, "train_fraction must be a number above 0, at most 1, got 0.0"),
        ({"seed": -1}, "seed must be a whole number from 0 to 4,294,967,295, got -1"),
    ],
)
def test_a_run_that_cannot_be_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(RUN.hyperparameters() | change, Hyperparameters, "")
    if "optimizer" not in change:  # the tests' type checker refuses it first
        with pytest.raises(ValueError, match=message):
            replace(RUN, **change)
