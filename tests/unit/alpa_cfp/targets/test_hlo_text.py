"""The text of a scheduled program is read as it stands: names, shapes, calls, groups of devices and trips of loops."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.targets.errors import HloTextError
from alpa_cfp.targets.hlo_collectives import replica_groups
from alpa_cfp.targets.hlo_loops import trip_count
from alpa_cfp.targets.hlo_text import Instruction, ScheduledModule, Shape, read_scheduled

HEADER = "HloModule jit_step, is_scheduled=true, entry_computation_layout={()->f32[]}"


def module_of(*lines: str, before: str = "", header: str = HEADER) -> ScheduledModule:
    """The module whose entry has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return read_scheduled(f"{header}\n\n{before}\nENTRY %main (a: f32[4]) -> f32[4] {{\n{body}\n}}\n")


def instruction(line: str) -> Instruction:
    """The last of a parameter `%a` and this line."""
    module = module_of("%a = f32[4]{0} parameter(0)", f"ROOT {line}")
    return module.computations["main"].instructions[-1]


def collective(attributes: str) -> Instruction:
    return instruction(f"%r = f32[4]{{0}} all-reduce(%a), {attributes}")


def test_instructions_stand_in_the_order_of_the_schedule() -> None:
    module = module_of(
        "%b = f32[4]{0} parameter(1)",
        "%a = f32[4]{0} parameter(0)",
        "ROOT %sum.1 = f32[4]{0} add(%a, /*index=1*/%b)",
    )
    entry = module.computations[module.entry]
    assert [each.name for each in entry.instructions] == ["b", "a", "sum.1"]
    assert [each.name for each in entry.parameters] == ["a", "b"]
    assert entry.by_name["sum.1"].operands == ("a", "b")
    assert entry.root == "sum.1"


def test_the_root_need_not_be_last() -> None:
    module = module_of("%a = f32[4]{0} parameter(0)", "ROOT %r = f32[4]{0} copy(%a)", "%late = f32[4]{0} copy(%a)")
    assert module.computations["main"].root == "r"


def test_tuples_are_flattened_and_layouts_are_dropped_but_for_the_memory() -> None:
    found = instruction(
        "%s = ((bf16[4,8]{1,0:T(8,128)(2,1)}), f32[2,8]{1,0:T(8,128)S(1)}, /*index=2*/u32[]{:S(2)}) slice-start(%a), "
        "slice={[0:2], [0:8]}"
    )
    assert found.shapes == (Shape("bf16", (4, 8)), Shape("f32", (2, 8), 1), Shape("u32", (), 2))
    assert found.opcode == "slice-start"
    assert found.operands == ("a",)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("pred[10]", 10), ("bf16[3,5]", 30), ("f8e4m3fn[7]", 7), ("s4[5]", 3), ("f4e2m1fn[4]", 2), ("c64[2]", 16),
        ("f64[]", 8), ("token[]", 0), ("f32[0,4]", 0), ("s32[<=300,2]", 2400),
    ],
)  # fmt: skip
def test_bytes_of_element_types(text: str, size_bytes: int) -> None:
    assert instruction(f"%x = {text} custom-call(%a)").size_bytes == size_bytes


def test_attributes_may_have_commas_brackets_and_quoted_names_of_others() -> None:
    found = instruction(
        "%f = f32[4]{0} fusion(%a), kind=kLoop, calls=%main, "
        r'metadata={op_name="jit(f)/x[\'w\'], calls=%other" scheduling_name="f"}, '
        'backend_config={"window":{"estimated_cycles":"6832","bounds":["1","2"]},"list":[]}'
    )
    assert found.attributes["kind"] == "kLoop"
    assert found.calls == ("main",)
    assert found.estimated_cycles == 6832
    assert found.backend_config()["window"]["bounds"] == ["1", "2"]


def test_a_configuration_may_be_a_quoted_text() -> None:
    found = instruction(r'%x = f32[4]{0} custom-call(%a), backend_config="{\"n\":[1, 2]}"')
    assert found.backend_config() == {"n": [1, 2]}
    assert instruction('%x = f32[4]{0} custom-call(%a), backend_config=""').backend_config() == {}


def test_a_configuration_that_is_no_json_is_refused_with_its_line() -> None:
    with pytest.raises(
        HloTextError, match=r"line 6 .* the backend_config is not JSON.* install the compilers whose texts are known"
    ):
        instruction("%x = f32[4]{0} custom-call(%a), backend_config={opaque}").backend_config()


def test_the_devices_are_partitions_times_replicas() -> None:
    line = "ROOT %a = f32[4]{0} parameter(0)"
    assert module_of(line).num_devices == 1
    assert module_of(line, header=f"{HEADER}, replica_count=4, num_partitions=2").num_devices == 8


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("replica_groups={}", ((0, 1, 2, 3),)),
        ("channel_id=1", ((0, 1, 2, 3),)),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=mesh['x'=2,'y'=2] {'y'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['x'=2,'y'=2] {'x'}", ((0, 2), (1, 3))),
        ("replica_groups=mesh['x'=1,'y'=4] {'x','y'}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['x'=4] {'x':(2)2}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['x'=4] {'x':(1)2}", ((0, 2), (1, 3))),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
    ],
)
def test_groups_are_expanded(attributes: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert replica_groups(collective(f"{attributes}, dimensions={{0}}"), 4) == groups


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).flatmap(
        lambda dims: st.tuples(st.just(dims), st.permutations(range(len(dims))))
    )
)
def test_each_device_is_in_one_group_of_an_iota(case: tuple[list[int], list[int]]) -> None:
    dims, order = case
    size = dims[order[-1]]
    text = f"[{prod(dims) // size},{size}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})"
    groups = replica_groups(collective(f"replica_groups={text}"), prod(dims))
    assert sorted(device for group in groups for device in group) == list(range(prod(dims)))
    # A group is a line along the dim that the order has last, so its devices are equally far apart.
    stride = prod(dims[order[-1] + 1 :])
    assert all(later - earlier == stride for group in groups for earlier, later in pairwise(group))


@pytest.mark.parametrize("text", ["[3,2]<=[4]", "[2,2]<=[2,2]T(0,0)", "@mesh<a=2>"])
def test_groups_that_are_not_known_are_refused(text: str) -> None:
    with pytest.raises(HloTextError, match="its replica_groups are written in a way that is not known"):
        replica_groups(collective(f"replica_groups={text}"), 4)


LOOP = """
%test (c: (s32[], s32[])) -> pred[] {
  %c = (s32[]{:T(128)}, s32[]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=0
  %most = s32[] get-tuple-element(%c), index=1
  %limit = s32[]{:T(128)} constant(7)
  ROOT %less = pred[] compare(%i, TEST), direction=DIRECTION
}

%body (p: (s32[], s32[])) -> (s32[], s32[]) {
  %p = (s32[]{:T(128)}, s32[]) parameter(0)
  %step = s32[] constant(STEP)
  %j = s32[] get-tuple-element(%p), index=0
  %kept = s32[] get-tuple-element(%p), index=1
  %next = s32[] add(%step, %j)
  ROOT %both = (s32[], s32[]) tuple(%next, %kept)
}
"""


def trips(
    test: str = "%limit", direction: str = "LT", step: int = 1, config: str = "", start: str = "constant(0)"
) -> int | None:
    before = LOOP.replace("TEST", test).replace("DIRECTION", direction).replace("STEP", str(step))
    module = module_of(
        "%a = s32[] parameter(0)",
        f"%zero = s32[] {start}",
        "%copied = s32[] copy(%zero)",
        "%five = s32[] constant(5)",
        "%init = (s32[], s32[]) tuple(%copied, %five)",
        f"ROOT %loop = (s32[], s32[]) while(%init), condition=%test, body=%body{config}",
        before=before,
    )
    entry = module.computations["main"]
    return trip_count(module, entry, entry.by_name["loop"])


def test_trips_that_the_compiler_tells() -> None:
    assert trips(config=', backend_config={"known_trip_count":{"n":"12"}}') == 12


@pytest.mark.parametrize(
    ("test", "direction", "step", "count"),
    [
        ("%limit", "LT", 1, 7),
        ("%limit", "LE", 1, 8),
        ("%limit", "LT", 2, 4),
        ("%most", "LT", 1, 5),
        ("%limit", "NE", 7, 1),
    ],
)
def test_trips_of_a_counting_loop_are_worked_out(test: str, direction: str, step: int, count: int) -> None:
    assert trips(test, direction, step) == count


@pytest.mark.parametrize("unknown", [{"start": "negate(%a)"}, {"direction": "EQ"}, {"step": 0}, {"test": "%i"}])
def test_trips_that_depend_on_data_are_not_known(unknown: dict[str, str]) -> None:
    assert trips(**unknown) is None


def test_what_is_no_scheduled_module_is_refused() -> None:
    with pytest.raises(HloTextError, match="this is no scheduled program: it begins with 'module @jit' and not with"):
        read_scheduled("module @jit")
    with pytest.raises(HloTextError, match="its module is not scheduled"):
        read_scheduled("HloModule jit_step, entry_computation_layout={}")
    with pytest.raises(HloTextError, match="no ENTRY"):
        read_scheduled(HEADER)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("%b = f32[4]{0} add(%a, %c)", "its operand %c does not stand before it"),
        ("%b = add(%a)", "its result has no shape"),
        ("%b = f32[4]{0} (%a)", "it has no opcode"),
        ("%b = f32[4]{0} add(%a", "its operands do not end"),
        ("return %a", "it is no instruction"),
        ("%b = f32[4]{0} fusion(%a), kind=kLoop, calls=%gone", "it calls %gone, which does not exist"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, problem: str) -> None:
    with pytest.raises(HloTextError, match=r"line 6 .*" + problem):
        module_of("%a = f32[4]{0} parameter(0)", line)


def test_a_text_that_is_cut_off_is_refused() -> None:
    with pytest.raises(HloTextError, match="the computation does not end"):
        read_scheduled(f"{HEADER}\nENTRY %main () -> f32[] {{\n  ROOT %a = f32[] parameter(0)\n")


def test_a_computation_without_instructions_is_refused() -> None:
    with pytest.raises(HloTextError, match=r"line 3 .*: the computation has no instructions: 'main'"):
        read_scheduled(f"{HEADER}\n\nENTRY %main () -> f32[] {{\n}}\n")


def test_a_loop_without_a_body_is_refused() -> None:
    module = module_of(
        "%a = s32[] parameter(0)",
        "ROOT %loop = s32[] while(%a), condition=%test",
        before="%test (c: s32[]) -> pred[] {\n  ROOT %c = pred[] constant(false)\n}\n",
    )
    entry = module.computations["main"]
    with pytest.raises(HloTextError, match="the loop does not have a condition and a body: 'loop'"):
        trip_count(module, entry, entry.by_name["loop"])
