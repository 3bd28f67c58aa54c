"""`flax.optim`, which optax has replaced; only DynamicScale is left of it, in `flax.training.dynamic_scale`."""

from flax.training.dynamic_scale import DynamicScale

__all__ = ["DynamicScale"]
