"""Manual shardings for the models: takes a model and a style, gives back alpa's `ManualShardingOption`.

Two styles of all models over the mesh axes `data` and `model`: "data_parallel" splits the batch over both and
replicates the rest; "megatron" splits the batch over `data` and the parameters over `model`: kernels by columns, then
by rows, so that one all-reduce follows each pair; embeddings by vocabulary; experts by expert. A parameter's optimizer
state is sharded as the parameter. A third one, "maxtext", is of some models only (`has_style`): dims have logical
names, and the rules that MaxText publishes say which are split (`LOGICAL_AXIS_RULES`). Invariant: every rule matches
something, so a renamed parameter is an error and not a silent replica.
"""

import re
from typing import Any

import jax
from alpa import ManualShardingOption
from flax import linen as nn
from jax.sharding import PartitionSpec

from alpa_cfp_bench.workloads.model import Model
from alpa_cfp_bench.workloads.sizes import MESH_AXES

STYLES = ("data_parallel", "megatron")
MAXTEXT = "maxtext"

_COLUMN = PartitionSpec(None, "model")
_ROW = PartitionSpec("model", None)
_SPLIT = PartitionSpec("model")

_TRANSFORMER_RULES = {
    r"word_embeddings/embedding": _ROW,
    r"self/qvk_combined/kernel": _COLUMN,
    r"self/qvk_combined/bias": _SPLIT,
    r"attention/output/dense/kernel": _ROW,
    r"intermediate/dense/kernel": _COLUMN,
    r"intermediate/dense/bias": _SPLIT,
    r"\d+/output/dense/kernel": _ROW,
    r"params/bias": _SPLIT,
}

# Ends of parameter paths; what no rule names is replicated.
_MEGATRON_RULES: dict[str, dict[str, PartitionSpec]] = {
    "mlp": {
        r"Dense_[02]/kernel": _COLUMN,
        r"Dense_[02]/bias": _SPLIT,
        r"Dense_[13]/kernel": _ROW,
    },
    "gpt": _TRANSFORMER_RULES,
    "bert": {rule.replace("params/bias", "predictions/bias"): spec for rule, spec in _TRANSFORMER_RULES.items()},
    "moe": _TRANSFORMER_RULES
    | {
        r"moe/w[io]": PartitionSpec("model", None, None),
        r"decoder/kernel": _COLUMN,
    },
    "llama": {
        r"embedding/embedding": _ROW,
        r"layer_\d+/([qkv]|gate|up)/kernel": _COLUMN,
        r"layer_\d+/(o|down)/kernel": _ROW,
        r"head/kernel": _COLUMN,
    },
    # Scores get a number for each head from a table of (distances, heads).
    "t5": {
        r"embedding/embedding": _ROW,
        r"(encoder|decoder)_positions/table/embedding": _COLUMN,
        r"(cross_)?attention/[qkv]/kernel": _COLUMN,
        r"(cross_)?attention/o/kernel": _ROW,
        r"mlp/wi_[01]/kernel": _COLUMN,
        r"mlp/wo/kernel": _ROW,
        r"head/kernel": _COLUMN,
    },
    # Attention's kernels are (hidden, heads, head dim), and (heads, head dim, hidden) at its end.
    "vit": {
        r"attention/(query|key|value)/kernel": PartitionSpec(None, "model", None),
        r"attention/(query|key|value)/bias": PartitionSpec("model", None),
        r"attention/out/kernel": PartitionSpec("model", None, None),
        r"wi/kernel": _COLUMN,
        r"wi/bias": _SPLIT,
        r"wo/kernel": _ROW,
    },
    # Each gate by columns: a device has a part of the hidden state, which is gathered in each step. There is no pair of
    # columns and rows, since a nonlinearity lies between two products with the same kernel.
    "lstm": {
        r"embedding/embedding": _ROW,
        r"layer_\d+/input/kernel": PartitionSpec(None, None, "model"),
        r"layer_\d+/input/bias": PartitionSpec(None, "model"),
        r"layer_\d+/recurrent": PartitionSpec(None, None, "model"),
        r"head/kernel": _COLUMN,
    },
    # Kernels are (height, width, in, out).
    "conv": {
        r"ResNetBlock_\d/Conv_0/kernel": PartitionSpec(None, None, None, "model"),
        r"ResNetBlock_\d/BatchNorm_0/(scale|bias|mean|var)": _SPLIT,
        r"ResNetBlock_\d/Conv_1/kernel": PartitionSpec(None, None, "model", None),
        r"Dense_0/kernel": _ROW,
    },
    "wide_resnet": {
        r"ResNetBlock_\d/Conv_1/kernel": PartitionSpec(None, None, None, "model"),
        r"ResNetBlock_\d/BatchNorm_1/(scale|bias|mean|var)": _SPLIT,
        r"ResNetBlock_\d/Conv_2/kernel": PartitionSpec(None, None, "model", None),
        r"Dense_0/kernel": _ROW,
    },
    # The U-Net's attention makes one dim of batch and heads, where heads cannot stay split: it is replicated.
    "unet": {
        r"time_embedding/linear_1/kernel": _COLUMN,
        r"time_embedding/linear_1/bias": _SPLIT,
        r"time_embedding/linear_2/kernel": _ROW,
        r"resnets_\d/conv1/kernel": PartitionSpec(None, None, None, "model"),
        r"resnets_\d/time_emb_proj/kernel": _COLUMN,
        r"resnets_\d/(conv1|time_emb_proj|norm2)/bias": _SPLIT,
        r"resnets_\d/norm2/scale": _SPLIT,
        r"resnets_\d/conv2/kernel": PartitionSpec(None, None, "model", None),
    },
}

# The mesh axis over which a dim with a logical name is split: the `logical_axis_rules` of MaxText, in MaxText/configs/
# base.yml of https://github.com/AI-Hypercomputer/maxtext at 000e93554a028c208eeacc75b7c1813a79ae6219, for a mesh of its
# axes `fsdp` and `tensor`, which are `data` and `model` here; its other axes have size 1. A rule counts whose axis no
# other dim of the tensor has.
LOGICAL_AXIS_RULES = (
    ("activation_batch", "data"),
    ("activation_heads", "model"),
    ("activation_length", None),
    ("activation_embed", "model"),
    ("activation_mlp", "model"),
    ("activation_kv", "model"),
    ("activation_vocab", "model"),
    ("mlp", "model"),
    ("vocab", "model"),
    ("embed", "data"),
    ("norm", "model"),
    ("heads", "model"),
    ("kv", None),
)

# The logical names of the dims of parameters, as MaxText's layers have them (MaxText/layers); heads and the dims of one
# head are one dim here.
_LOGICAL_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {
        r"embedding/embedding": ("vocab", "embed"),
        r"layer_\d+/[qkv]/kernel": ("embed", "heads"),
        r"layer_\d+/o/kernel": ("heads", "embed"),
        r"layer_\d+/(gate|up)/kernel": ("embed", "mlp"),
        r"layer_\d+/down/kernel": ("mlp", "embed"),
        r"(layer_\d+/(attention|mlp)_)?norm/scale": ("norm",),
        r"head/kernel": ("embed", "vocab"),
    },
}


def has_style(model: Model, style: str) -> bool:
    """Whether there are shardings of a model in a style."""
    return style in STYLES or (style == MAXTEXT and model.name in _LOGICAL_NAMES)


def _rules(model: Model, style: str) -> dict[str, PartitionSpec]:
    """The specs of parameters by the ends of their paths."""
    if style == "megatron":
        return _MEGATRON_RULES[model.name]
    if style == MAXTEXT:
        names = _LOGICAL_NAMES[model.name].items()
        return {end: nn.logical_to_mesh_axes(dims, LOGICAL_AXIS_RULES) or PartitionSpec() for end, dims in names}
    return {}


def state_specs(model: Model, style: str) -> Any:
    """A pytree like `model.state` with a PartitionSpec for each array.

    Raises:
        KeyError: there are no shardings of the model in this style.
    """
    rules = _rules(model, style)
    unmatched = set(rules)

    def spec(path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        del leaf
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, result in rules.items():
            if re.search(rf"(^|/|Bottleneck){pattern}$", name):
                unmatched.discard(pattern)
                return result
        return PartitionSpec()

    specs = jax.tree_util.tree_map_with_path(spec, model.state)
    if unmatched:
        raise ValueError(f"no parameter of {model.name} matches {sorted(unmatched)}")
    return specs


def batch_spec(style: str) -> PartitionSpec:
    """How dim 0 of each array of a batch is split."""
    return PartitionSpec(MESH_AXES) if style == "data_parallel" else PartitionSpec("data")


def manual_sharding(model: Model, style: str) -> ManualShardingOption:
    """The option for `train_step(model)`'s arguments (state, batch) in a style that the model has."""
    batch_specs = jax.tree.map(lambda _: batch_spec(style), model.batch)
    return ManualShardingOption(MESH_AXES, in_axis_resources=(state_specs(model, style), batch_specs))
