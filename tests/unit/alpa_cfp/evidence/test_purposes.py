"""Collectives are said to be of gradients or weights where the program shows it, and only there."""

import pytest

from alpa_cfp.evidence.purposes import Share, share_of
from alpa_cfp.plan.plan_report import Purpose
from alpa_cfp.spmd.ir import mlir

# A weight and activations on two devices.
WEIGHT, ACTIVATIONS, HALF = "tensor<4x8xf32>", "tensor<16x4x8xf32>", "tensor<2x8xf32>"
GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"


def summed(operands: str, types: str) -> str:
    """An all-reduce."""
    region = "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.add %a, %b : tensor<f32>\n"
    return f'"stablehlo.all_reduce"({operands}) <{{{GROUPS}}}> {region} stablehlo.return %c : tensor<f32> }}) : {types}'


def scattered(operand: str, types: str) -> str:
    """A reduce-scatter along dim 0."""
    region = "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.add %a, %b : tensor<f32>\n"
    return (
        f'"stablehlo.reduce_scatter"({operand}) <{{{GROUPS}, scatter_dimension = 0 : i64}}> '
        f"{region} stablehlo.return %c : tensor<f32> }}) : {types}"
    )


def gathered(operand: str, types: str) -> str:
    """An all-gather along dim 0."""
    return f'"stablehlo.all_gather"({operand}) <{{{GROUPS}, all_gather_dim = 0 : i64}}> : {types}'


def share(arguments: str, lines: list[str], results: dict[str, tuple[str, bool]]) -> Share:
    """That of the first collective of a program whose parameter 0 is a weight.

    Args:
        arguments: Of the function, with their types.
        lines: Its body.
        results: What it returns, each with its type and whether that is the shape of a weight.
    """
    types = ", ".join(kind for kind, _ in results.values())
    text = "\n".join(
        [f"func.func public @main({arguments}) -> ({types}) {{", *lines, f"return {', '.join(results)} : {types}", "}"]
    )
    with mlir.context():
        parsed = mlir.parse(f"module {{ {text} }}")
        block = mlir.entry_block(mlir.main_function(parsed))
        names = ("stablehlo.all_reduce", "stablehlo.reduce_scatter", "stablehlo.all_gather")
        op = next(each for each in mlir.block_operations(block) if each.name in names)
        return share_of(op, {next(iter(block.arguments))}, [is_weight for _, is_weight in results.values()])


def test_a_sum_that_only_updates_a_weight_is_a_gradient() -> None:
    found = share(
        f"%w: {WEIGHT}, %g: {WEIGHT}",
        [f"%s = {summed('%g', f'({WEIGHT}) -> {WEIGHT}')}", f"%n = stablehlo.subtract %w, %s : {WEIGHT}"],
        {"%n": (WEIGHT, True)},
    )
    assert found == Share(1.0)


def test_a_sum_that_goes_to_activations_too_is_no_gradient() -> None:
    spread = f"stablehlo.broadcast_in_dim %s, dims = [1, 2] : ({WEIGHT}) -> {ACTIVATIONS}"
    found = share(
        f"%w: {WEIGHT}, %g: {WEIGHT}",
        [f"%s = {summed('%g', f'({WEIGHT}) -> {WEIGHT}')}", f"%x = {spread}"],
        {"%s": (WEIGHT, True), "%x": (ACTIVATIONS, False)},
    )
    assert found.purpose is None


def test_a_sum_that_is_used_by_nothing_of_a_weight_is_no_gradient() -> None:
    found = share(
        f"%w: {WEIGHT}, %x: {ACTIVATIONS}",
        [f"%s = {summed('%x', f'({ACTIVATIONS}) -> {ACTIVATIONS}')}"],
        {"%s": (ACTIVATIONS, False)},
    )
    assert found.purpose is None


def test_a_gradient_is_one_though_its_norm_is_taken() -> None:
    square = f"%q = stablehlo.multiply %s, %s : {WEIGHT}"
    norm = f"stablehlo.reduce(%q init: %z) applies stablehlo.add across dimensions = [0, 1] : ({WEIGHT}, tensor<f32>)"
    found = share(
        f"%w: {WEIGHT}, %g: {WEIGHT}, %z: tensor<f32>",
        [f"%s = {summed('%g', f'({WEIGHT}) -> {WEIGHT}')}", square, f"%n = {norm} -> tensor<f32>"],
        {"%s": (WEIGHT, True), "%n": ("tensor<f32>", False)},
    )
    assert found == Share(1.0)


def test_of_a_sum_of_several_arrays_only_those_of_weights_count() -> None:
    loss = "tensor<8xf32>"
    found = share(
        f"%w: {WEIGHT}, %g: {WEIGHT}, %l: {loss}",
        [f"%s:2 = {summed('%g, %l', f'({WEIGHT}, {loss}) -> ({WEIGHT}, {loss})')}"],
        {"%s#0": (WEIGHT, True), "%s#1": (loss, False)},
    )
    assert found.gradient == pytest.approx(32 / 40)
    assert found.purpose == "mostly gradient"


def test_gradients_that_are_packed_for_one_collective_are_gradients() -> None:
    packed, part = "tensor<8x8xf32>", "tensor<4x8xf32>"
    found = share(
        f"%w: {WEIGHT}, %g: {WEIGHT}, %h: {WEIGHT}",
        [
            f"%p = stablehlo.concatenate %g, %h, dim = 0 : ({WEIGHT}, {WEIGHT}) -> {packed}",
            f"%s = {scattered('%p', f'({packed}) -> {part}')}",
            f"%a0 = stablehlo.slice %s [0:2, 0:8] : ({part}) -> {HALF}",
            f"%a1 = stablehlo.slice %s [2:4, 0:8] : ({part}) -> {HALF}",
        ],
        {"%a0": (HALF, True), "%a1": (HALF, True)},
    )
    assert found == Share(1.0)


def test_a_gradient_is_one_though_what_it_updates_is_gathered() -> None:
    found = share(
        f"%w: {HALF}, %g: {WEIGHT}",
        [
            f"%s = {scattered('%g', f'({WEIGHT}) -> {HALF}')}",
            f"%n = stablehlo.subtract %w, %s : {HALF}",
            f"%a = {gathered('%n', f'({HALF}) -> {WEIGHT}')}",
        ],
        {"%a": (WEIGHT, True)},
    )
    assert found == Share(1.0)


@pytest.mark.parametrize(("operand", "purpose"), [("%w", "weight"), ("%x", None)])
def test_a_gather_of_what_was_given_as_a_weight_is_one_of_weights(operand: str, purpose: Purpose | None) -> None:
    found = share(
        f"%w: {HALF}, %x: {HALF}",
        [f"%c = stablehlo.add {operand}, {operand} : {HALF}", f"%g = {gathered(operand, f'({HALF}) -> {WEIGHT}')}"],
        {"%g": (WEIGHT, False)},
    )
    assert found.purpose == purpose


def test_a_gather_of_new_weights_is_one_of_weights() -> None:
    found = share(
        f"%w: {HALF}, %x: {HALF}",
        [f"%n = stablehlo.add %w, %x : {HALF}", f"%g = {gathered('%n', f'({HALF}) -> {WEIGHT}')}"],
        {"%g": (WEIGHT, True)},
    )
    assert found.purpose == "weight"
