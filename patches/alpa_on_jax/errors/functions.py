"""Errors of a function that is to be parallelized, and of its arguments."""

from collections.abc import Sequence
from typing import Any

from alpa_on_jax.errors.base import AlpaOnJaxError


class NotCallableError(AlpaOnJaxError, TypeError):
    """`alpa.parallelize` was given something that is no function."""

    def __init__(self, value: Any) -> None:
        super().__init__(
            f"alpa.parallelize expects a function, but got {value!r} of type {type(value).__name__}. Give it the "
            "function itself, not the result of calling it"
        )


class NotAnArrayError(AlpaOnJaxError, TypeError):
    """A dynamic argument of a parallelized function has a leaf that is no array."""

    def __init__(self, function: str, leaf: str, value: Any) -> None:
        super().__init__(
            f"{function}: {leaf} is {value!r} of type {type(value).__name__}, which is no array. Only arrays and "
            "numbers can be distributed; give anything else as a static argument (alpa.parallelize(..., "
            "static_argnums=...)) or keep it out of the arguments"
        )


class NotJittableError(AlpaOnJaxError, TypeError):
    """The function cannot be traced, so it cannot be compiled."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(
            f"{function} cannot be compiled, because tracing it failed: {reason}. A function for alpa.parallelize must "
            "be one that jax.jit accepts: no Python control flow on the values of arrays, and arrays as results"
        )


class ArgnumsError(AlpaOnJaxError, ValueError):
    """static_argnums, donate_argnums or batch_argnums do not fit the arguments."""

    def __init__(self, function: str, option: str, value: Any, reason: str) -> None:
        super().__init__(f"{function}: {option}={value!r} {reason}")


class MicroBatchError(AlpaOnJaxError, ValueError):
    """The batch cannot be split in micro-batches, or what they give cannot be put together."""

    @classmethod
    def no_mean(cls, value: str) -> "MicroBatchError":
        return cls(
            f"{value} is a whole number or a truth value, of which micro-batches have no average, and it is not known "
            "to be a sum, a maximum, a minimum, or whether any or all samples are something. Give it as a float, if "
            "its average is meant, or give what it is made of (a value for each sample is joined), or leave "
            "num_micro_batches out"
        )

    @classmethod
    def several_dims(cls, value: str, several: bool) -> "MicroBatchError":
        why = "several of its dims grow" if several else "a dim of it grows, and has other things in it than samples"
        return cls(
            f"{value} cannot be put together from those of micro-batches: {why} with the batch. Give it with one dim "
            "for samples alone, or leave num_micro_batches out"
        )

    @classmethod
    def in_pipeline(cls, number: int, shape: str, how: str) -> "MicroBatchError":
        return cls(
            f"result {number} of alpa.grad or alpa.value_and_grad ({shape}) would have to be {how}, and a pipeline "
            "averages what its micro-batches give. Compute it in a function of its own (with FollowParallel, where the "
            "state is), or use ShardParallel"
        )


class GradientMarkerError(AlpaOnJaxError, ValueError):
    """With micro-batches, it cannot be told what is done once a micro-batch and what once a step."""

    @classmethod
    def missing(cls) -> "GradientMarkerError":
        return cls(
            "num_micro_batches was given, but the function calls neither alpa.grad nor alpa.value_and_grad, which mark "
            "the end of what is done for each micro-batch. That usually happens with jax.grad in their place: use "
            "alpa.grad or alpa.value_and_grad, with the same arguments; or leave num_micro_batches out"
        )

    @classmethod
    def several(cls, count: int) -> "GradientMarkerError":
        return cls(
            "with num_micro_batches, one call of alpa.grad or alpa.value_and_grad marks the end of what is done for "
            f"each micro-batch, but the function calls them {count} times. Take all gradients with one call, or leave "
            "num_micro_batches out"
        )

    @classmethod
    def crossed(cls, values: Sequence[str]) -> "GradientMarkerError":
        return cls(
            "with num_micro_batches, what comes before the gradients is done once a micro-batch and what comes after "
            "them once a step, and only the results of alpa.grad or alpa.value_and_grad pass between the "
            f"two. But the part after them uses values of the part before: {'; '.join(values)}. Compute these after "
            "the gradients, or return them from the loss as auxiliary values (has_aux=True)"
        )


class DonationError(AlpaOnJaxError, ValueError):
    """In a pipeline, a donated array has no result that can take its place."""

    def __init__(self, number: int, donated: str, result: str) -> None:
        super().__init__(
            "in a pipeline, the result of the same number takes the place of a donated array, both counted array by "
            f"array: for array {number} of the arguments, {donated}, that is {result}. Return the new state first "
            "and with the structure of the old one, as in `return state, loss`, or donate nothing: "
            'alpa.parallelize(..., donate_argnums=()). By default, "auto", optimizer states and flax\'s TrainStates '
            "are donated"
        )


class LayerMarkerError(AlpaOnJaxError, ValueError):
    """A function for a pipeline has operations outside of its layers."""

    def __init__(self, operation: str, source: str) -> None:
        super().__init__(
            f"the operation {operation} of {source} is in no pipeline layer, but every operation of the function must "
            "be. That usually happens when the function was not divided into layers: wrap it in "
            "manual_layer_construction, with calls of alpa.mark_pipeline_boundary() between its layers, or in "
            "automatic_layer_construction (both in alpa.pipeline_parallel.layer_construction)"
        )
