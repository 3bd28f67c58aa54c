"""Replacements in `alpa.model.moe`: rematerialised layers, whose flags were made static by `nn.remat(concrete=True)`.

JAX has no `concrete` any more; arguments that steer Python code are named with `static_argnums`, which counts
positional arguments only, and alpa passes these by keyword.
"""

from types import ModuleType
from typing import Any

import flax.linen as nn
import jax

from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Replace the layer collection by a subclass with its own setup."""

    class FlaxMoELayerCollection(module.FlaxMoELayerCollection):
        """Layers with experts and ordinary ones by turns, rematerialised if the config says so."""

        def setup(self) -> None:
            if self.config.num_hidden_layers % 2:
                raise ValueError(
                    f"num_hidden_layers={self.config.num_hidden_layers} must be even: every second layer has experts"
                )
            classes = (module.FlaxMoELayer, module.FlaxBertLayer)
            if self.config.gradient_checkpointing:
                classes = tuple(_rematerialised(cls) for cls in classes)
            self.layers = [
                classes[i % 2](self.config, name=str(i), dtype=self.dtype) for i in range(self.config.num_hidden_layers)
            ]

    replace(module, FlaxMoELayerCollection)


def _rematerialised(cls: type[nn.Module]) -> type[nn.Module]:
    class Layer(nn.remat(cls, static_argnums=(3, 4))):  # type: ignore[misc]
        def __call__(
            self,
            hidden_states: jax.Array,
            attention_mask: jax.Array,
            deterministic: bool = True,
            output_attentions: bool = False,
        ) -> Any:
            return super().__call__(hidden_states, attention_mask, deterministic, output_attentions)

    return Layer
