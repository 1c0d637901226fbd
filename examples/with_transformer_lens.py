"""Opens language models of a zoo in TransformerLens 4, with all its hooks.

pip install transformer-lens
python examples/with_transformer_lens.py my-zoo shakespeare 0     a zoo, a config, a row
"""

import sys

import torch

try:
    from transformer_lens import TransformerBridge, TransformerBridgeConfig
except ModuleNotFoundError:
    sys.exit("error: this example needs TransformerLens 4: pip install transformer-lens")

import zoo
from zoo.transformer.model import EPSILON

_NAMES = {
    "embedding": "embed",
    "positions": "pos_embed",
    "unembedding": "unembed",
    "query": "attn.q",
    "key": "attn.k",
    "value": "attn.v",
    "output": "attn.o",
    "fc1": "mlp.in",
    "fc2": "mlp.out",
}
"""Parts of the zoo's names of tensors, and those of TransformerLens."""


def load(spec: zoo.TransformerSpec, weights: torch.Tensor) -> TransformerBridge:
    """A language model of the zoo, from its flat weights. Biases that it does not have are 0."""
    if not (spec.causal and spec.residual and spec.key_dim == spec.value_dim):
        raise ValueError(f"TransformerLens takes residual language models with keys as long as values, got {spec}")
    config = TransformerBridgeConfig(
        d_model=spec.dim,
        d_head=spec.key_dim,
        n_heads=spec.heads,
        n_layers=spec.blocks,
        n_ctx=spec.tokens,
        d_vocab=spec.classes,
        d_mlp=spec.hidden_dim,
        act_fn="relu",
        normalization_type="LNPre",
        positional_embedding_type="standard",
        eps=EPSILON,
    )
    bridge = TransformerBridge.boot_native(config)
    state = {name: torch.zeros_like(tensor) for name, tensor in bridge.state_dict().items()}
    for name, tensor in zoo.TransformerWeights.from_flat(spec, weights).state_dict().items():
        state[".".join(_NAMES.get(part, part) for part in name.split("."))] = tensor
    bridge.load_state_dict(state)
    return bridge.eval()


if __name__ == "__main__":
    reader = zoo.open(sys.argv[1], sys.argv[2], split="all")
    weights = reader.weights(int(sys.argv[3]))
    tokens = torch.randint(reader.spec.classes, (1, reader.spec.tokens))
    logits, cache = load(reader.spec, weights).run_with_cache(tokens)
    difference = (logits - zoo.build_model(reader.spec, weights)(tokens)).abs().max()
    print(f"attention of the first block: {tuple(cache['blocks.0.attn.hook_pattern'].shape)}")
    print(f"largest difference between the logits: {difference:.1e}")
