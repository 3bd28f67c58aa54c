"""Reading the communication of a program from its optimised HLO."""

import pytest

from alpa_cfp.spmd.compile.collectives import collectives_of_hlo
from alpa_cfp.spmd.errors import InternalError
from alpa_cfp.spmd.module.partitioned import Collective


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "%a = f32[8,4]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add",
            Collective("all-reduce", 128, 2),
            id="explicit_groups",
        ),
        pytest.param(
            "%a = bf16[16]{0} all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add",
            Collective("all-reduce", 32, 4),
            id="groups_in_iota_form",
        ),
        pytest.param(
            "%a = f32[4]{0} all-reduce(%p), channel_id=1, replica_groups=mesh['x'=8,'y'=1] {'x'}, to_apply=%add",
            Collective("all-reduce", 16, 8),
            id="groups_along_an_axis_of_a_mesh",
        ),
        pytest.param(
            "%a = f32[8]{0} all-gather(%p), replica_groups=mesh['x'=2,'y'=2,'z'=2], device_ids=([4,2]T(1,0)) "
            "{'x','z'}, dimensions={0}, use_global_device_ids=true",
            Collective("all-gather", 8, 4),
            id="groups_along_several_axes_of_a_mesh_in_another_order",
        ),
        pytest.param(
            "%a = f32[4]{0} all-reduce(%p), replica_groups=mesh['x'=8] {'x':(2)4}, to_apply=%add",
            Collective("all-reduce", 16, 4),
            id="groups_along_a_part_of_an_axis",
        ),
        pytest.param(
            "%a = f32[4]{0} all-reduce(%p), channel_id=1, replica_groups=mesh[x=2,y=8] {x,y:(1)2}, to_apply=%add",
            Collective("all-reduce", 16, 4),
            id="groups_along_axes_without_quotes",
        ),
        pytest.param(
            "%a = (f32[4]{0}, f32[]) all-reduce(%p, %q), replica_groups={{0,1,2,3}}, to_apply=%add",
            Collective("all-reduce", 20, 4),
            id="arrays_that_xla_put_together_count_once",
        ),
        pytest.param(
            "%a = f32[8]{0} all-gather(%p), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}",
            Collective("all-gather", 8, 4),
            id="an_all_gather_by_its_operand",
        ),
        pytest.param(
            "%a = f32[2]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add",
            Collective("reduce-scatter", 32, 4),
            id="a_reduce_scatter_by_its_operand",
        ),
        pytest.param(
            "%a = s32[2]{0} collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,0}}",
            Collective("collective-permute", 8, 2),
            id="a_permute_is_between_two_devices",
        ),
        pytest.param(
            "%a = (f32[8]{0}, f32[4]{0}) all-gather(%p, %q), replica_groups={{0,1,2,3}}, dimensions={0}",
            Collective("all-gather", 12, 4),
            id="several_arrays_that_are_gathered",
        ),
        pytest.param(
            "%a = (f32[2]{0}, f32[8]{0}) all-gather-start(%p), replica_groups={{0,1,2,3}}, dimensions={0}",
            Collective("all-gather", 8, 4),
            id="the_start_of_an_all_gather_gives_its_operand_too",
        ),
        pytest.param(
            "%a = (f32[8]{0}, f32[2]{0}) reduce-scatter-start(%p), replica_groups={{0,1,2,3}}, dimensions={0}",
            Collective("reduce-scatter", 32, 4),
            id="the_start_of_a_reduce_scatter_gives_its_operand_too",
        ),
        pytest.param(
            "%a = (f32[8]{0}, f32[8]{0}) all-to-all-start(%p), replica_groups={{0,1,2,3}}, dimensions={0}",
            Collective("all-to-all", 32, 4),
            id="the_start_of_an_all_to_all_gives_its_operand_too",
        ),
        pytest.param(
            "%a = f32[8]{0} all-reduce-start(%p), replica_groups={{0,1,2,3}}, to_apply=%add",
            Collective("all-reduce", 32, 4),
            id="the_start_of_an_all_reduce_gives_its_result",
        ),
    ],
)
def test_a_collective_is_read_with_its_kind_size_and_group(line: str, expected: Collective) -> None:
    assert collectives_of_hlo(f"ENTRY %main {{\n  {line}\n}}\n") == (expected,)


def bytes_of(array: str) -> int:
    """The bytes that a sum of an array of this type counts."""
    (found,) = collectives_of_hlo(f"%a = {array} all-reduce(%p), replica_groups={{{{0,1}}}}, to_apply=%add\n")
    return found.size_bytes


@pytest.mark.parametrize(
    ("array", "size_bytes"),
    [
        *((f"{name}[16]", 16) for name in ("pred", "s8", "u8")),
        *((f"{name}[16]", 32) for name in ("s16", "u16", "f16", "bf16")),
        *((f"{name}[16]", 64) for name in ("s32", "u32", "f32")),
        *((f"{name}[16]", 128) for name in ("s64", "u64", "f64", "c64")),
        ("c128[16]", 256),
        *((f"f8{form}[16]", 16) for form in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")),
        ("f8e8m0fnu[16]", 16),
        ("f32[]", 4),
        ("f32[<=16]{0}", 64),
        ("(f8e4m3fn[16]{0}, token[])", 16),
    ],
)
def test_elements_of_every_type_count(array: str, size_bytes: int) -> None:
    assert bytes_of(array) == size_bytes


@pytest.mark.parametrize(
    ("array", "size_bytes"),
    [
        ("s4[4,4]{1,0:E(4)}", 8),
        ("u4[3]{0:T(8,128)E(4)}", 2),
        ("s2[16]{0:E(2)}", 4),
        ("f4e2m1fn[16]{0:E(4)}", 8),
        ("(s4[16]{0:E(4)}, f32[4]{0})", 24),
        ("s4[16]{0}", 16),
        ("f4e2m1fn[16]", 16),
    ],
)
def test_elements_of_less_than_a_byte_take_one_unless_they_are_packed(array: str, size_bytes: int) -> None:
    assert bytes_of(array) == size_bytes


def test_a_type_of_unknown_size_is_an_error_that_names_it() -> None:
    # As 0 bytes its communication would be free.
    with pytest.raises(InternalError, match="elements of the type 'opaque', whose size is not known"):
        collectives_of_hlo("%a = opaque[] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add\n")


def test_what_only_names_a_collective_is_not_counted() -> None:
    text = "%fusion = f32[8]{0} fusion(%all-reduce.1), kind=kLoop, calls=%all-reduce_computation\n"
    assert collectives_of_hlo(text) == ()
