"""One training step of a predictor: forward, backward, Adam.

On a GPU the whole step is recorded once as a CUDA graph and then replayed: at this size launching the kernels one by
one takes many times longer than running them. On a CPU it runs as it stands.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nfn.predictors.predictor import Predictor
from nfn.training.cuda_graph import record
from nfn.training.ensemble import PredictorEnsemble
from zoo import TransformerWeights
from zoo.transformer.onednn import fast_small_products


class TrainingStep:
    """``step(flat, accuracy)`` trains on one batch and returns its loss, binary cross entropy against the accuracy.

    Batches are [batch, d] flat weights with [batch] accuracies, for an ensemble also [seeds, batch, d] with [seeds,
    batch]; their shape is fixed by the first call. For an ensemble the loss is a row [seeds], and each member's
    gradient is that of its own loss. The returned tensor is overwritten by the next step.
    """

    def __init__(
        self,
        model: Predictor | PredictorEnsemble,
        *,
        learning_rate: float = 1e-3,
        graph: bool | None = None,
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.graph = self.device.type == "cuda" if graph is None else graph
        if self.graph and self.device.type != "cuda":
            raise ValueError(
                f"only a CUDA device can record a graph, and the model is on {self.device}: use graph=False"
            )
        # As a tensor, because a recorded graph reads it anew at every replay.
        self._learning_rate = torch.tensor(learning_rate, device=self.device)
        self.optimizer = torch.optim.Adam(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=self._learning_rate,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        self._recorded: torch.cuda.CUDAGraph | None = None
        self._flat = self._accuracy = self._loss = torch.empty(0)

    def set_learning_rate(self, value: float) -> None:
        """For the next step on."""
        self._learning_rate.fill_(value)

    def __call__(self, flat: Float[Tensor, "*batch d"], accuracy: Float[Tensor, "..."]) -> Float[Tensor, "*seeds"]:
        if flat.shape[:-1] != accuracy.shape:
            raise ValueError(
                f"every checkpoint needs one accuracy, got weights {list(flat.shape)} "
                f"and accuracies {list(accuracy.shape)}"
            )
        if not self.graph:
            return self._step(flat, accuracy)
        if self._recorded is None:
            self._record(flat, accuracy)
        if flat.shape != self._flat.shape:
            raise ValueError(
                f"a recorded step takes batches of shape {list(self._flat.shape)}, got {list(flat.shape)}: "
                "drop the last, smaller batch or make a step of its own for it"
            )
        self._flat.copy_(flat, non_blocking=True)
        self._accuracy.copy_(accuracy, non_blocking=True)
        assert self._recorded is not None
        self._recorded.replay()
        return self._loss

    def _step(self, flat: Tensor, accuracy: Tensor) -> Tensor:
        loss = self.gradients(flat, accuracy)
        self.optimizer.step()
        return loss

    @fast_small_products()
    def gradients(self, flat: Float[Tensor, "*batch d"], accuracy: Float[Tensor, "..."]) -> Float[Tensor, "*seeds"]:
        """Forward and backward without the update: the loss, and fresh gradients in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(flat, accuracy)
        loss.sum().backward()
        return loss.detach()

    def loss(self, flat: Tensor, accuracy: Tensor) -> Tensor:
        """The mean binary cross entropy, one number a member for an ensemble."""
        weights = TransformerWeights.from_flat(self.model.spec, flat, check_finite=False)
        logits = self.model.logits(weights)
        entropy = nn.functional.binary_cross_entropy_with_logits(logits, accuracy.expand_as(logits), reduction="none")
        return entropy.mean(-1)

    def _record(self, flat: Tensor, accuracy: Tensor) -> None:
        """Records the step on tensors of its own."""
        self._flat = flat.to(self.device, copy=True)
        self._accuracy = accuracy.to(self.device, copy=True)
        self._recorded, self._loss = record(
            lambda: self._step(self._flat, self._accuracy), list(self.model.parameters()), self.optimizer
        )
