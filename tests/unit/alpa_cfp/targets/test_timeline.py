"""The queues of a scheduled program: what runs after what, what is hidden, and how often a loop counts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.targets.computing import Work
from alpa_cfp.targets.hlo_text import Computation, Instruction, ScheduledModule, read_scheduled
from alpa_cfp.targets.timeline import CollectiveOp, ScheduleError, Timeline, walk

HEADER = "HloModule jit_step, is_scheduled=true, num_partitions=4"
A = "%a = f32[100]{0} parameter(0)"
GROUPS = "replica_groups={{0,1},{2,3}}"
# Each kernel takes 2 s, and a collective 5; what else stands in a program takes none.
KERNEL_S, COLLECTIVE_S, COPY_S = 2.0, 5.0, 3.0


def kernel(name: str, operand: str = "a") -> str:
    return f"%{name} = f32[100] negate(%{operand})"


def start(name: str, operand: str = "a", config: str = "") -> str:
    return f"%{name} = f32[100] all-reduce-start(%{operand}), {GROUPS}, to_apply=%sum{config}"


def done(name: str, of: str) -> str:
    return f"%{name} = f32[100] all-reduce-done(%{of})"


SUM = """
%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}
"""


def work_of(module: ScheduledModule, computation: Computation, instruction: Instruction) -> Work:
    del module, computation
    return Work(KERNEL_S, "kernel", 400) if instruction.opcode == "negate" else Work()


def walked(*lines: str, before: str = "") -> tuple[Timeline, list[CollectiveOp]]:
    """The timeline of an entry with these lines, and the collectives that it asked for."""
    body = "\n".join(f"  {line}" for line in (A, *lines))
    module = read_scheduled(f"{HEADER}\n{SUM}{before}\nENTRY %main () -> f32[] {{\n{body}\n}}\n")
    asked = list[CollectiveOp]()

    def collective_s(op: CollectiveOp) -> float:
        asked.append(op)
        return COLLECTIVE_S

    return walk(module, work_of, collective_s, lambda _: COPY_S), asked


def timeline(*lines: str, before: str = "") -> Timeline:
    return walked(*lines, before=before)[0]


def times(found: Timeline) -> tuple[float, float, float, float]:
    return found.step_s, found.computing_s, found.communicating_s, found.hidden_s


def test_kernels_run_one_after_the_other() -> None:
    found = timeline(kernel("k"), kernel("l"))
    assert times(found) == (4, 4, 0, 0)
    assert [(each.name, each.start_s, each.end_s, each.kind, each.size_bytes) for each in found.entries] == [
        ("k", 0, 2, "kernel", 400),
        ("l", 2, 4, "kernel", 400),
    ]


def test_a_collective_without_start_and_done_stops_the_computation() -> None:
    found = timeline(kernel("k"), f"%r = f32[100] all-reduce(%k), {GROUPS}, to_apply=%sum", kernel("l", "r"))
    assert times(found) == (9, 4, 5, 0)


def test_what_runs_between_start_and_done_hides_the_collective() -> None:
    found = timeline(start("s"), kernel("k"), kernel("l"), kernel("m"), done("d", "s"))
    assert times(found) == (6, 6, 5, 5)


def test_what_is_not_hidden_is_waited_for() -> None:
    found = timeline(start("s"), kernel("k"), done("d", "s"), kernel("l", "d"))
    assert times(found) == (7, 4, 5, 2)
    assert [(each.name, each.queue, each.start_s) for each in found.entries] == [
        ("k", "computing", 0),
        ("s", "communicating", 0),
        ("l", "computing", 5),
    ]


def exposed(found: Timeline) -> list[tuple[str, float]]:
    return [(each.name, each.exposed_s) for each in found.entries if each.queue == "communicating"]


def test_what_is_waited_for_of_a_collective_is_its_end() -> None:
    """The second one is done before it is waited for; of the first one 3 s are not hidden."""
    lines = (start("s"), kernel("k"), done("d", "s"), start("t"), kernel("l"), kernel("m"), kernel("n"), done("e", "t"))
    assert exposed(timeline(*lines)) == [("s", 3), ("t", 0)]


def test_who_waits_for_a_collective_waits_for_those_before_it() -> None:
    found = timeline(start("s"), start("t"), kernel("k"), done("e", "t"), done("d", "s"), kernel("l"))
    assert exposed(found) == [("s", 3), ("t", 5)]
    assert sum(seconds for _, seconds in exposed(found)) == found.communicating_s - found.hidden_s


def test_a_pair_that_the_compiler_marks_as_synchronous_hides_nothing() -> None:
    config = ', backend_config={"collective_backend_config":{"is_sync":true}}'
    found = timeline(start("s", config=config), kernel("k"), done("d", "s"))
    assert times(found) == (7, 2, 5, 0)


def test_collectives_queue_behind_each_other() -> None:
    """The second one starts when the first one is done, though its operand was there before."""
    found = timeline(start("s"), start("t"), done("d", "s"), kernel("k"), done("e", "t"))
    assert times(found) == (10, 2, 10, 2)
    assert [each.start_s for each in found.entries if each.queue == "communicating"] == [0, 5]


def test_what_nobody_waits_for_is_done_before_the_step_ends() -> None:
    assert times(timeline(start("s"), kernel("k"))) == (5, 2, 5, 2)


def test_a_collective_is_asked_for_by_its_bytes_groups_and_arrays() -> None:
    gather = (
        "%g = ((f32[100], bf16[50]), (f32[200], bf16[100])) all-gather-start(%a, %b), dimensions={0}, "
        "replica_groups=[2,2]<=[2,2]T(1,0)"
    )
    send = "%p = (f32[100], f32[100]) collective-permute-start(%a), source_target_pairs={{0,1},{1,0}}"
    _, asked = walked("%b = bf16[50] parameter(1)", gather, send)
    assert asked == [
        CollectiveOp("all-gather", 400 + 100, ((0, 2), (1, 3)), 2),
        CollectiveOp("collective-permute", 400, ((0, 1), (1, 0)), 1),
    ]


def test_a_collective_that_is_wrapped_is_found() -> None:
    wrapped = """
%wrapped (w: f32[100]) -> f32[200] {
  %w = f32[100] parameter(0)
  ROOT %g = f32[200] all-gather(%w), replica_groups={{0,1},{2,3}}, dimensions={0}
}
"""
    found, asked = walked(
        "%s = ((f32[100]), f32[200], u32[]) async-start(%a), calls=%wrapped",
        kernel("k"),
        "%u = ((f32[100]), f32[200], u32[]) async-update(%s)",
        "%d = f32[200] async-done(%u)",
        before=wrapped,
    )
    assert times(found) == (5, 2, 5, 2)
    assert asked == [CollectiveOp("all-gather", 400, ((0, 1), (2, 3)), 1)]


def test_kernels_that_are_wrapped_compute() -> None:
    wrapped = f"\n%wrapped (w: f32[100]) -> f32[100] {{\n  %w = f32[100] parameter(0)\n  ROOT {kernel('k', 'w')}\n}}\n"
    lines = ("%s = ((f32[100]), f32[100]) async-start(%a), calls=%wrapped", "%d = f32[100] async-done(%s)")
    assert times(timeline(*lines, before=wrapped)) == (2, 2, 0, 0)


LOOP = """
%body (p: (f32[100])) -> (f32[100]) {
  %p = (f32[100]) parameter(0)
  %a = f32[100] get-tuple-element(%p), index=0
  LINES
  ROOT %t = (f32[100]) tuple(%k)
}

%test (p: (f32[100])) -> pred[] {
  %p = (f32[100]) parameter(0)
  ROOT %x = pred[] constant(true)
}
"""


def loop(trips: int | None, name: str = "w", body: str = "body") -> str:
    config = "" if trips is None else f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return f"%{name} = (f32[100]) while(%i), condition=%test, body=%{body}{config}"


def looped(trips: int | None, *lines: str, ahead: tuple[str, ...] = ()) -> Timeline:
    before = LOOP.replace("LINES", "\n  ".join(lines))
    return timeline(*ahead, "%i = (f32[100]) tuple(%a)", loop(trips), before=before)


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_a_loop_counts_its_trips(trips: int) -> None:
    """Each trip: a collective beside one kernel, and one more kernel behind it."""
    found = looped(trips, start("s"), kernel("j"), done("d", "s"), kernel("k", "d"))
    assert times(found) == (7 * trips, 4 * trips, 5 * trips, 2 * trips)
    assert found.unknown_loops == ()


def test_only_the_first_trip_of_a_loop_is_drawn_and_the_others_as_one() -> None:
    found = looped(7, kernel("k"))
    assert [(each.name, each.start_s, each.end_s) for each in found.entries] == [
        ("k", 0, 2),
        ("w, 6 more trips", 2, 14),
    ]


def test_the_first_trip_waits_for_what_was_started_before_and_the_others_do_not() -> None:
    """A collective of 5 s is in the queue when the loop begins: its first collective ends at 10 s."""
    found = looped(3, start("s"), done("d", "s"), kernel("k", "d"), ahead=(start("before"),))
    assert times(found) == (10 + 2 + 2 * 7, 6, 20, 0)


def test_a_loop_in_a_loop_counts_both() -> None:
    inner = LOOP.replace("LINES", kernel("k"))
    outer = "\n".join(
        (
            "\n%outer (p: (f32[100])) -> (f32[100]) {",
            "  %i = (f32[100]) parameter(0)",
            f"  {loop(3)}",
            "  ROOT %t = (f32[100]) bitcast(%w)\n}\n",
        )
    )
    found = timeline("%i = (f32[100]) tuple(%a)", loop(5, "v", "outer"), before=inner + outer)
    assert times(found) == (30, 30, 0, 0)


def test_a_loop_whose_trips_nobody_knows_counts_once_and_is_named() -> None:
    found = looped(None, kernel("k"))
    assert (found.step_s, found.unknown_loops) == (2, ("w",))


def test_of_a_conditional_the_longest_branch_counts() -> None:
    branches = (
        f"\n%short (a: f32[100]) -> f32[100] {{\n  {A}\n  ROOT {kernel('k')}\n}}\n"
        f"\n%long (a: f32[100]) -> f32[100] {{\n  {A}\n  {kernel('k')}\n  ROOT {kernel('l', 'k')}\n}}\n"
    )
    lines = ("%p = s32[] parameter(1)", "%c = f32[100] conditional(%p, %a, %a), branch_computations={%long, %short}")
    found = timeline(*lines, kernel("m"), before=branches)
    assert found.step_s == 6
    assert [each.name for each in found.entries] == ["k", "l", "m"]


FUSED_ENDS = """
%start (p: f32[100]) -> (f32[100], f32[200], u32[]) {
  %p = f32[100] parameter(0)
  %g = f32[200] all-gather(%p), channel_id=1, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %x = (f32[100], f32[200], u32[]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%step (p: f32[100], q: f32[200]) -> (f32[100], f32[100], f32[200]) {
  %p = f32[100] parameter(0)
  %q = f32[200] parameter(1)
  %k = f32[100] negate(%p)
  %g = f32[200] all-gather(%p), channel_id=1, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %x = (f32[100], f32[100], f32[200]) tuple(%k, %p, %g)
}

%done (p: f32[100], q: f32[200]) -> f32[200] {
  %p = f32[100] parameter(0)
  %q = f32[200] parameter(1)
  %g = f32[200] all-gather(%p), channel_id=1, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %x = f32[200] custom-call(%p, %q, %g), custom_call_target="AsyncCollectiveDone"
}
"""


def test_a_tpus_collective_whose_ends_are_fusions_is_one_collective() -> None:
    """Its steps are taken in a fusion that computes, which has cycles and passes it on."""
    lines = (
        "%s = (f32[100], f32[200], u32[]) fusion(%a), kind=kCustom, calls=%start",
        "%s0 = f32[100] get-tuple-element(%s), index=0",
        "%s1 = f32[200] get-tuple-element(%s), index=1",
        "%f = (f32[100], f32[100], f32[200]) fusion(%s0, %s1), kind=kOutput, calls=%step, "
        'output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}, backend_config={"estimated_cycles":"9"}',
        kernel("k"),
        "%f1 = f32[100] get-tuple-element(%f), index=1",
        "%f2 = f32[200] get-tuple-element(%f), index=2",
        "%d = f32[200] fusion(%f1, %f2), kind=kCustom, calls=%done",
    )
    found, asked = walked(*lines, before=FUSED_ENDS)
    assert times(found) == (5, 2, 5, 2)
    assert asked == [CollectiveOp("all-gather", 400, ((0, 1), (2, 3)), 1)]


def test_an_all_reduce_that_is_cut_in_its_fusion_is_a_reduce_scatter() -> None:
    cut = f"""
%cut (p: f32[100]) -> f32[50] {{
  %p = f32[100] parameter(0)
  %i = s32[] constant(0)
  %r = f32[100] all-reduce(%p), {GROUPS}, to_apply=%sum
  ROOT %c = f32[50] dynamic-slice(%r, %i), dynamic_slice_sizes={{50}}
}}
"""
    found, asked = walked("%f = f32[50] fusion(%a), kind=kCustom, calls=%cut", kernel("k"), before=cut)
    assert times(found) == (7, 2, 5, 0)
    assert asked == [CollectiveOp("reduce-scatter", 400, ((0, 1), (2, 3)), 1)]


def test_copies_between_memories_run_beside_the_others_and_are_waited_for() -> None:
    copy = "%c = (f32[100]{0:S(1)}, f32[100]{0}, u32[]{:S(2)}) copy-start(%a)"
    found = timeline(copy, kernel("k"), "%d = f32[100]{0:S(1)} copy-done(%c)", kernel("l", "d"))
    assert times(found) == (5, 4, 0, 0)
    assert found.copies_s == 1
    assert [each.queue for each in found.entries] == ["computing", "copying", "computing"]


def test_a_done_without_a_start_is_refused() -> None:
    with pytest.raises(ScheduleError, match="waits for d, which it has not started"):
        timeline(done("d", "a"))


@pytest.mark.parametrize("opcode", ["send", "recv-done", "outfeed"])
def test_what_waits_for_a_host_has_no_seconds(opcode: str) -> None:
    with pytest.raises(ScheduleError, match=f"the scheduled program has x, a {opcode}, whose seconds depend"):
        timeline(f"%x = f32[100] {opcode}(%a)")


@given(st.lists(st.sampled_from(["kernel", "start", "done", "reduce"]), max_size=30))
def test_a_step_is_what_computes_and_what_of_communication_is_not_hidden(steps: list[str]) -> None:
    lines, open_ = list[str](), list[str]()
    for number, step in enumerate(steps):
        if step == "start":
            open_.append(f"s{number}")
            lines.append(start(open_[-1]))
        elif step == "done" and open_:
            lines.append(done(f"d{number}", open_.pop(number % len(open_))))
        elif step == "reduce":
            lines.append(f"%r{number} = f32[100] all-reduce(%a), {GROUPS}, to_apply=%sum")
        else:
            lines.append(kernel(f"k{number}"))
    found = timeline(*lines)
    assert found.step_s == pytest.approx(found.computing_s + found.communicating_s - found.hidden_s)
    assert 0 <= found.hidden_s <= min(found.computing_s, found.communicating_s)
    assert found.step_s >= max(found.computing_s, found.communicating_s)
    for queue, busy_s in (("computing", found.computing_s), ("communicating", found.communicating_s)):
        own = [each for each in found.entries if each.queue == queue]
        assert all(earlier.end_s <= later.start_s for earlier, later in pairwise(own))
        assert sum(each.end_s - each.start_s for each in own) == pytest.approx(busy_s)
