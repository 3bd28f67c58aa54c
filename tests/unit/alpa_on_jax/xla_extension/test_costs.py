"""Floating-point operations of dots and convolutions, by formula."""

import jax
import numpy as np
import pytest

from alpa_on_jax.xla_extension import hlo_module_count_flop_dot_conv_only
from unit.alpa_cfp.spmd.helpers import lower
from unit.alpa_cfp.spmd.partition.op_cases import conv, normal


@pytest.mark.parametrize(
    ("function", "shapes", "flop"),
    [
        (lambda a, b: a @ b, [(8, 16), (16, 4)], 2 * 8 * 16 * 4),
        (lambda a, b: jax.numpy.einsum("bij,bjk->bik", a, b), [(3, 8, 16), (3, 16, 4)], 2 * 3 * 8 * 16 * 4),
        (lambda a, b: jax.numpy.tanh(a) + b, [(8, 16), (8, 16)], 0),
        (lambda a, b: (a @ b).sum() + (a @ b * 2).sum(), [(8, 16), (16, 4)], 2 * 2 * 8 * 16 * 4),
        (conv, [(2, 5, 5, 3), (3, 3, 3, 7)], 2 * 2 * 5 * 5 * 7 * 3 * 3 * 3),
        (lambda i, k: conv(i, k, stride=2), [(2, 5, 5, 3), (3, 3, 3, 7)], 2 * 2 * 3 * 3 * 7 * 3 * 3 * 3),
        (lambda i, k: conv(i, k, groups=4), [(2, 5, 5, 8), (3, 3, 2, 12)], 2 * 2 * 5 * 5 * 12 * 3 * 3 * 2),
        (lambda a, b: jax.lax.fori_loop(0, 9, lambda i, c: c @ b, a), [(8, 8), (8, 8)], 2 * 8 * 8 * 8),
    ],
    ids=["dot", "batched dot", "no dot", "equal dots", "convolution", "strided", "grouped", "in a loop"],
)
def test_a_multiply_add_counts_two(function, shapes, flop):
    assert hlo_module_count_flop_dot_conv_only(lower(function, [normal(*shape) for shape in shapes])) == flop


def test_a_training_step_counts_the_forward_and_both_gradient_dots():
    x, w = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
    module = lower(jax.grad(lambda x, w: ((x @ w) ** 2).sum(), argnums=(0, 1)), (x, w))
    assert hlo_module_count_flop_dot_conv_only(module) == 3 * 2 * 8 * 16 * 4
