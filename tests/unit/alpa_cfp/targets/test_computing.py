"""An instruction takes as long as its bytes and products do, by the chip's peaks and what programs reach of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.targets.computing import Efficiency, Work, computing_work, copying_s, product_s
from alpa_cfp.targets.errors import HloTextError, RateError
from alpa_cfp.targets.hlo_text import read_scheduled
from alpa_cfp.targets.products import Product, products_of
from alpa_cfp.targets.traffic import moved_bytes

HEADER = "HloModule jit_step, is_scheduled=true"
# Everything that a chip has, so that seconds can be worked out by hand.
PERFECT = Efficiency(memory_share=1, product_share=1, border=0, overlap=1, launch_s=0)


@dataclass(frozen=True)
class AChip:
    """A chip with 1 TB/s and 4 cores."""

    kind: str = "gpu"
    flops_per_s: Mapping[str, float] = field(default_factory=lambda: {"bf16": 4e12, "tf32": 2e12, "f32": 1e12})
    memory_bytes_per_s: float = 1e12
    cores: int = 4
    clock_hz: float = 1e9


GPU, TPU = AChip(), AChip("tpu")


def program(*lines: str, before: str = ""):
    """A module with these lines, its entry, and its last instruction."""
    body = "\n".join(f"  {line}" for line in lines)
    module = read_scheduled(f"{HEADER}\n{before}\nENTRY %main () -> f32[] {{\n{body}\n}}\n")
    entry = module.computations["main"]
    return module, entry, entry.instructions[-1]


def work(*lines: str, before: str = "", chip: AChip = GPU, efficiency: Efficiency = PERFECT) -> Work:
    return computing_work(*program(*lines, before=before), chip, efficiency)


def moved(*lines: str, before: str = "") -> int:
    return moved_bytes(*program(*lines, before=before))[0]


def products(*lines: str, before: str = "") -> list[Product]:
    return list(products_of(*program(*lines, before=before)))


A = "%a = f32[1000]{0} parameter(0)"


@pytest.mark.parametrize(
    "line",
    [
        "%x = (f32[1000], f32[1000]) tuple(%a, %a)",
        "%x = f32[10,100] bitcast(%a)",
        "%x = f32[1000] constant({...})",
        '%x = f32[1000] custom-call(%a), custom_call_target="ConcatBitcast"',
    ],
)
def test_what_is_only_a_name_takes_no_time(line: str) -> None:
    assert work(A, line) == Work()


def test_a_kernel_takes_its_bytes_by_the_bandwidth_and_its_launch() -> None:
    """Two operands and a result of 4,000 bytes each, at half of 1 TB/s."""
    efficiency = Efficiency(memory_share=0.5, launch_s=3e-6)
    found = work(A, "%b = f32[1000] parameter(1)", "%x = f32[1000] add(%a, %b)", efficiency=efficiency)
    assert found.seconds == pytest.approx(12_000 / 0.5e12 + 3e-6)
    assert (found.kind, found.moved_bytes, found.flops) == ("add", 12_000, 0)


def test_on_a_tpu_the_compilers_cycles_count_and_nothing_is_launched() -> None:
    cycles = '%x = f32[1000] add(%a, %a), backend_config={"window_config":{"estimated_cycles":"2500"}}'
    assert work(A, cycles, chip=TPU).seconds == pytest.approx(2.5e-6)
    without = work(A, "%x = f32[1000] add(%a, %a)", chip=TPU, efficiency=Efficiency(memory_share=1))
    assert without.seconds == pytest.approx(8_000 / 1e12)


def test_a_tpus_cycles_say_nothing_of_a_gpu() -> None:
    line = '%x = f32[1000] add(%a, %a), backend_config={"estimated_cycles":"2500"}'
    assert work(A, line).seconds == pytest.approx(8_000 / 1e12)


def test_what_is_on_the_chip_moves_faster_and_is_no_traffic_of_the_memory() -> None:
    near = "%x = f32[1000]{0:S(1)} add(%a, %a)"
    assert moved(A, near) == 4_000
    assert work(A, near, chip=TPU).seconds == pytest.approx(4_000 / 1e12 + 4_000 / 22e12)


def test_an_operand_that_stands_there_twice_is_read_once() -> None:
    assert moved(A, "%x = f32[1000] multiply(%a, %a)") == 8_000


FUSED = """
%fused (p: f32[1000], i: s32[]) -> f32[10] {
  %p = f32[1000] parameter(0)
  %i = s32[] parameter(1)
  %q = f32[1000] bitcast(%p)
  LINES
}
"""


@pytest.mark.parametrize(
    ("lines", "result", "size_bytes"),
    [
        # Of what is sliced the slice, the index, and the result.
        ("ROOT %s = f32[10] dynamic-slice(%q, %i), dynamic_slice_sizes={10}", "f32[10]", 40 + 4 + 40),
        # Twice sliced is twice read, as long as that is less than all.
        (
            "%s = f32[10] slice(%q), slice={[0:10]}\n  %t = f32[10] slice(%q), slice={[10:20]}\n"
            "  ROOT %u = f32[10] add(%s, %t)",
            "f32[10]",
            80 + 40,
        ),
        ("%s = f32[10] slice(%q), slice={[0:10]}\n  ROOT %n = f32[1000] pad(%q, %s)", "f32[1000]", 4_000 + 4_000),
        # What is updated in place is written where it is new, and not read.
        (
            "%c = f32[10] constant({...})\n  %w = f32[1000] dynamic-update-slice(%q, %c, %i)\n"
            "  ROOT %r = f32[1000] bitcast(%w)",
            "f32[1000]",
            4 + 40,
        ),
        # What is only passed on is neither read nor written.
        ("%n = f32[] negate(%i)\n  ROOT %r = (f32[], f32[1000]) tuple(%n, %p)", "(f32[], f32[1000])", 4 + 4),
    ],
)
def test_a_fusion_moves_what_it_takes_and_what_is_new(lines: str, result: str, size_bytes: int) -> None:
    call = f"%x = {result} fusion(%a, %i), kind=kLoop, calls=%fused"
    assert moved(A, "%i = s32[] parameter(1)", call, before=FUSED.replace("LINES", lines)) == size_bytes


def test_a_copy_to_another_shape_is_read_and_written() -> None:
    """By itself, what is new in an array that is updated in place says nothing of what is copied from it."""
    update = "%w = f32[1000] dynamic-update-slice(%a, %c, %i)"
    lines = (A, "%c = f32[10] constant({...})", "%i = s32[] constant(0)", update, "%x = f32[10,100] reshape(%w)")
    assert moved(*lines) == 4_000 + 4_000


def test_a_scatter_reads_and_writes_what_it_adds_to() -> None:
    lines = (
        A,
        "%i = s32[10,1] parameter(1)",
        "%u = f32[10] parameter(2)",
        "%x = f32[1000] scatter(%a, %i, %u), to_apply=%main",
    )
    assert moved(*lines) == 40 + 40 + 40 + 40


def gemm(left: str, right: str, dims: str, precision: str = "DEFAULT") -> tuple[str, ...]:
    config = (
        '{"gemm_backend_config":{"dot_dimension_numbers":{' + dims + '},"precision_config":'
        '{"operand_precision":["' + precision + '","DEFAULT"]}}}'
    )
    call = f'custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={config}'
    return f"%a = {left} parameter(0)", f"%b = {right} parameter(1)", f"%x = (bf16[8,16,24], s8[99999]) {call}"


PLAIN = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
BATCHED = (
    '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["2"],"lhs_batch_dimensions":["0"],'
    '"rhs_batch_dimensions":["0"]'
)


def test_a_call_of_cublas_is_a_product_with_the_dims_of_its_configuration() -> None:
    assert products(*gemm("bf16[64,32]", "bf16[32,128]", PLAIN)) == [Product(1, 64, 128, 32, "bf16")]
    (batched,) = products(*gemm("bf16[8,32,16]", "bf16[8,24,32]", BATCHED))
    assert batched == Product(8, 16, 24, 32, "bf16")
    assert batched.flops == 2 * 8 * 16 * 24 * 32


def test_room_to_work_in_is_not_moved() -> None:
    assert moved(*gemm("bf16[8,32,16]", "bf16[8,24,32]", BATCHED)) == 2 * 8 * (32 * 16 + 24 * 32 + 16 * 24)


def test_float32_is_rounded_unless_more_is_asked_for() -> None:
    (rounded,) = products(*gemm("f32[64,32]", "f32[32,128]", PLAIN))
    (exact,) = products(*gemm("f32[64,32]", "f32[32,128]", PLAIN, "HIGHEST"))
    assert (rounded.element_type, exact.element_type) == ("tf32", "f32")


def test_products_inside_of_fusions_are_found() -> None:
    inner = """
%fused (p: bf16[64,32], q: bf16[32,128]) -> bf16[64,128] {
  %p = bf16[64,32] parameter(0)
  %q = bf16[32,128] parameter(1)
  ROOT %d = bf16[64,128] dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%outer (p: bf16[64,32], q: bf16[32,128]) -> bf16[64,128] {
  %p = bf16[64,32] parameter(0)
  %q = bf16[32,128] parameter(1)
  ROOT %f = bf16[64,128] fusion(%p, %q), kind=kCustom, calls=%fused
}
"""
    lines = ("%a = bf16[64,32] parameter(0)", "%b = bf16[32,128] parameter(1)")
    call = "%x = bf16[64,128] fusion(%a, %b), kind=kCustom, calls=%outer"
    assert products(*lines, call, before=inner) == [Product(1, 64, 128, 32, "bf16")]
    assert work(*lines, call, before=inner).kind == "product"


def convolution(target: str, first: str, second: str, result: str) -> Product:
    attributes = f'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv{target}"'
    (found,) = products(
        f"%a = {first} parameter(0)",
        f"%b = {second} parameter(1)",
        f"%x = ({result}, u8[0]) custom-call(%a, %b), window={{size=3x3}}, {attributes}",
    )
    return found


def test_the_three_convolutions_of_a_training_step_multiply_as_much() -> None:
    images, kernel, outputs = "bf16[4,14,14,32]", "bf16[64,3,3,32]", "bf16[4,14,14,64]"
    forward = convolution("Forward", images, kernel, outputs)
    of_input = convolution("BackwardInput", outputs, kernel, images)
    of_kernel = convolution("BackwardFilter", images, outputs, kernel)
    assert forward == Product(1, 4 * 14 * 14, 64, 9 * 32, "bf16")
    assert of_input == Product(1, 4 * 14 * 14, 32, 9 * 64, "bf16")
    assert of_kernel == Product(1, 64, 9 * 32, 4 * 14 * 14, "bf16")
    assert forward.flops == of_input.flops == of_kernel.flops


def test_a_convolution_by_halves_multiplies_a_quarter_as_much() -> None:
    small = convolution("Forward", "bf16[4,14,14,32]", "bf16[64,3,3,32]", "bf16[4,7,7,64]")
    back = convolution("BackwardInput", "bf16[4,7,7,64]", "bf16[64,3,3,32]", "bf16[4,14,14,32]")
    assert small.flops == back.flops == 2 * 4 * 7 * 7 * 64 * 9 * 32


def test_a_convolution_in_groups_sums_over_those_of_a_group() -> None:
    """Each of 64 features sees 8 of 32 channels: a quarter of the operations."""
    found = convolution("Forward", "bf16[4,14,14,32]", "bf16[64,3,3,8]", "bf16[4,14,14,64]")
    assert found.contracted == 9 * 8


def test_a_product_without_its_sizes_is_refused_by_name() -> None:
    with pytest.raises(HloTextError, match=r"line 6 .* its sizes do not make a product .*: 'x'"):
        products(*gemm("bf16[64,32]", "bf16[32,128]", '"lhs_contracting_dimensions":["5"]'))


def test_tiles_that_do_not_fill_the_last_wave_cost_a_whole_one() -> None:
    """With one row more, tiles of 64 x 64 are 9 x 4 instead of 8 x 4: a ninth wave over the four cores."""
    fits = product_s(Product(1, 512, 256, 64, "bf16"), GPU, PERFECT)
    beyond = product_s(Product(1, 513, 256, 64, "bf16"), GPU, PERFECT)
    assert fits == pytest.approx(2 * 512 * 256 * 64 / 4e12)
    assert beyond == pytest.approx(fits * 9 / 8)


def test_large_tiles_lose_less_at_their_borders() -> None:
    """Tiles of 256 x 128, each as if it had 32 rows and columns more."""
    efficiency = Efficiency(memory_share=1, product_share=1, border=32, overlap=1, launch_s=0)
    product = Product(1, 256, 512, 64, "bf16")
    lost = (1 + 32 / 256) * (1 + 32 / 128)
    assert product_s(product, GPU, efficiency) == pytest.approx(product.flops / 4e12 * lost)


def test_small_results_over_long_sums_are_split() -> None:
    """One tile would leave three of four cores idle."""
    product = Product(1, 64, 64, 65536, "bf16")
    alone = product.flops / (GPU.flops_per_s["bf16"] / GPU.cores)
    assert product_s(product, GPU, PERFECT) == pytest.approx(alone / 4)


@given(
    st.integers(1, 8), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 500),
)  # fmt: skip
def test_no_product_is_faster_than_the_peak_nor_faster_for_more_rows(
    batch: int, rows: int, columns: int, contracted: int, more: int
) -> None:
    efficiency = Efficiency()
    product = Product(batch, rows, columns, contracted, "bf16")
    seconds = product_s(product, GPU, efficiency)
    assert seconds >= product.flops / GPU.flops_per_s["bf16"]
    assert product_s(Product(batch, rows + more, columns, contracted, "bf16"), GPU, efficiency) >= seconds


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_no_kernel_is_faster_than_its_bytes_or_its_products(rows: int, columns: int, contracted: int) -> None:
    found = work(*gemm(f"bf16[{rows},{contracted}]", f"bf16[{contracted},{columns}]", PLAIN), efficiency=Efficiency())
    assert found.seconds >= found.moved_bytes / GPU.memory_bytes_per_s
    assert found.seconds >= found.flops / GPU.flops_per_s["bf16"]


def test_what_is_not_hidden_of_the_shorter_one_is_added() -> None:
    lines = gemm("bf16[512,64]", "bf16[64,256]", PLAIN)
    hidden = work(*lines, efficiency=PERFECT)
    serial = work(*lines, efficiency=Efficiency(memory_share=1, product_share=1, border=0, overlap=0, launch_s=0))
    products_s = 2 * 512 * 256 * 64 / 4e12
    assert hidden.seconds == pytest.approx(products_s)
    assert serial.seconds == pytest.approx(products_s + serial.moved_bytes / 1e12)


def test_a_type_without_a_rate_of_its_own_has_that_of_the_next_wider_one() -> None:
    eight = product_s(Product(1, 512, 256, 64, "f8e4m3fn"), GPU, PERFECT)
    assert eight == product_s(Product(1, 512, 256, 64, "bf16"), GPU, PERFECT)
    own = AChip(flops_per_s={"bf16": 4e12, "f8": 8e12})
    assert product_s(Product(1, 512, 256, 64, "f8e4m3fn"), own, PERFECT) == pytest.approx(eight / 2)


def test_a_chip_that_cannot_multiply_a_type_says_so() -> None:
    with pytest.raises(RateError, match=r"the gpu has no flops_per_s of f64, .* it has bf16\. Add it"):
        product_s(Product(1, 8, 8, 8, "f64"), AChip(flops_per_s={"bf16": 1e12}), PERFECT)


def test_a_tpus_product_without_cycles_goes_at_the_peak() -> None:
    product = Product(1, 100, 100, 100, "bf16")
    assert product_s(product, TPU, PERFECT) == pytest.approx(ceil(product.flops) / 4e12)


def test_a_slice_that_is_copied_moves_the_slice() -> None:
    line = "%x = ((f32[1000]{0}), f32[10]{0:S(1)}, u32[]{:S(2)}) slice-start(%a), slice={[0:10]}"
    assert copying_s(program(A, line)[2], TPU, PERFECT) == pytest.approx(40 / 1e12)
