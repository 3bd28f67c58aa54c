"""Does CFP plan models of the sizes that Alpa published? Their suites, and LLaMA, without a device of that kind.

Takes suites or cases; plans a whole training step of each on its mesh from shapes alone, by estimated costs, or by
profiles that were recorded on such a mesh (`--database`). Prints a line a case, writes `results/suite_<suite>-*`.
Invariants: no parameter is ever allocated; a case that cannot be planned is a row that says why, in full in the JSON.

Estimated times only rank plans, so none is printed. `--list` says the sizes, and how each is run on a CPU; `--scaled`
plans those small ones.
"""

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh

from alpa_cfp import CFPOption, Plan, autoshard, quantities
from alpa_cfp.errors import CFPError
from alpa_cfp.plan.plan_report import Alternative, PlanReport
from alpa_cfp.report import words
from alpa_cfp.search import MemoryBudgetError, SearchError
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp_bench.workloads.published import SUITES, Case
from alpa_cfp_bench.workloads.published_programs import program_of
from benchmarks import machine, runner
from benchmarks.suite_scaling import bench_command, for_cpu

# What Alpa measured on (V100 with 16 GB); LLaMA was trained on A100 with 80 GB.
MEMORY_GB = {"llama": 80.0}
_ALPA_MEMORY_GB = 16.0
_SHARED = {StateSharding.ZERO2: "ZeRO-2", StateSharding.ZERO3: "ZeRO-3"}

_TEXT = (
    "Planning a training step of the models of the {suite} suite at their {sizes} sizes "
    "(`alpa_cfp_bench/workloads/published.py` names the sources), from shapes alone: {costs}{remat}. `samples` "
    "are those of the planned step, a micro-batch of the suite rounded up to the devices. `trace` is from "
    "Python to shapes of state and batch, `planning` all of "
    "`autoshard`, tracing and lowering the step included. `memory` is predicted for a device, within the `budget`. The "
    "plan counts blocks: *data parallel* splits samples, *ZeRO-2* and *ZeRO-3* also share state, *tensor parallel* "
    "splits weights, heads or experts (as Megatron), *both* does one on one axis and the other on the other. There is "
    "no pipeline. The process held at most {peak:.1f} GiB."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Plan the cases that the command line names."""
    parser = runner.parser(__doc__)
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES), metavar="SUITE")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="of the suites, such as 39B (default: all)")
    parser.add_argument("--memory-gb", type=float, help="of a device; 0: no limit (default 16, for LLaMA 80)")
    parser.add_argument("--no-remat", action="store_true", help="keep activations, compute none again")
    parser.add_argument("--scaled", action="store_true", help="the small cases that a CPU can run")
    parser.add_argument("--database", type=Path, help="replay profiles from there (default: estimate)")
    parser.add_argument("--plans", type=Path, help="a directory for the plans, to be read by `alpa-cfp explain`")
    parser.add_argument("--list", action="store_true", help="say the sizes only")
    options = parser.parse_args(argv)
    cases = [
        case for suite in options.suites for name, case in SUITES[suite].items() if name in (options.cases or (name,))
    ]
    if not cases:
        parser.error(f"no case of {', '.join(options.suites)} is called {' or '.join(options.cases)}")
    if options.list:
        for case in cases:
            print(f"{_said(case)}\n  on a CPU: {_said(for_cpu(case))}\n  {bench_command(for_cpu(case))}")
        return 0
    for suite in options.suites:
        own = [case for case in cases if case.suite == suite]
        if own:
            print(_plan_all([for_cpu(case) for case in own] if options.scaled else own, options), flush=True)
    return 0


def _said(case: Case) -> str:
    """The sizes of a case, those that it has."""
    sizes = {name: value for name, value in asdict(case).items() if value and name not in ("suite", "name", "mesh")}
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sizes.items())
    return f"{case.suite} {case.name} on {quantities.shape(case.mesh)}: {said}"


def _plan_all(cases: Sequence[Case], options: argparse.Namespace) -> str:
    """Plan the cases of one suite, and keep what comes out; the verdict."""
    results = []
    for case in cases:
        memory_gb = MEMORY_GB.get(case.suite, _ALPA_MEMORY_GB) if options.memory_gb is None else options.memory_gb
        option = CFPOption(
            costs="replay" if options.database else "estimate",
            database=options.database,
            memory_budget_bytes=round(memory_gb * 1e9) or None,
            progress=False,
        )
        result, plan = planned(case, option, remat=not options.no_remat)
        results.append(result)
        print(" | ".join(_cells(result)), flush=True)
        if plan is not None and options.plans:
            options.plans.mkdir(parents=True, exist_ok=True)
            (options.plans / f"{case.suite}-{case.name}.json").write_text(plan.to_json())
        if not options.no_results:
            text = _TEXT.format(
                suite=case.suite,
                sizes="scaled" if options.scaled else "published",
                costs="profiles are replayed" if options.database else "costs are estimated",
                remat="" if options.no_remat else ", each layer is computed again in the backward pass",
                peak=results[-1]["peak_gib"],
            )
            name = f"suite_{case.suite}{'_scaled' if options.scaled else ''}"
            machine.write(name, f"{text}\n\n{_verdict(results)}", results, _table(results))
    return _verdict(results)


def planned(case: Case, option: CFPOption, *, remat: bool) -> tuple[dict[str, Any], Plan | None]:
    """Plan one case: what there is to say of it, and the plan; None where there is none."""
    started = time.perf_counter()
    program = program_of(case, remat=remat)
    traced = time.perf_counter()
    result = {
        "suite": case.suite,
        "name": case.name,
        "parameters": program.parameters,
        "mesh": quantities.shape(case.mesh),
        "samples": case.samples,
        "budget_bytes": option.memory_budget_bytes,
        "trace_s": traced - started,
    }
    plan, failure, least_bytes = None, "", None
    try:
        mesh = AbstractMesh(case.mesh, ("data", "model"))
        plan = autoshard(program.step, mesh, program.state, program.batch, donate_argnums=0, option=option)
    except (CFPError, SearchError) as error:
        failure = str(error)
        least_bytes = error.least_bytes if isinstance(error, MemoryBudgetError) else None
    result |= {"planning_s": time.perf_counter() - traced, "failure": failure, "least_bytes": least_bytes}
    result |= _of_plan(plan)
    result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return result, plan


def _of_plan(plan: Plan | None) -> dict[str, Any]:
    account = plan.account if plan else None
    if plan is None or account is None:
        return {}
    own = [account.chosen(block) for block in account.blocks]
    return {
        "ops": sum(account.kinds[block.kind].ops for block in account.blocks),
        "blocks": len(account.blocks),
        "kinds": len(account.kinds),
        "memory_bytes": plan.memory.state + plan.memory.saved + plan.memory.transient,
        "state_bytes": plan.memory.state,
        "methods": dict(Counter(method_of(each, plan.mesh_shape) for each in own).most_common()),
        "strategies": _strategies(account, own, plan.mesh_shape),
    }


def _strategies(account: PlanReport, own: Sequence[Alternative], shape: tuple[int, ...]) -> dict[str, int]:
    """How many blocks have each strategy, in words."""
    return dict(Counter(words.strategy(each, shape, account.axis_names) for each in own).most_common())


def method_of(alternative: Alternative, shape: Sequence[int]) -> str:
    """The name by which a strategy of a block goes: "data parallel", "ZeRO-2", "tensor parallel", "both, ZeRO-3"."""
    roles = {role for role, devices in zip(alternative.roles, shape, strict=True) if devices > 1}
    if not roles:
        return "one device"
    splits = roles - {None}
    if not splits:
        return "replicated"
    shared = _SHARED.get(StateSharding(alternative.kept), "")
    if splits == {"samples"}:
        return shared or "data parallel"
    name = "both" if "samples" in splits else "tensor parallel"
    return f"{name}, {shared}" if shared else name


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    fit = [result for result in results if not result["failure"]]
    slowest = max(results, key=lambda result: result["planning_s"])
    return (
        f"Of {len(results)} cases {len(fit)} have a plan that fits. Planning took at most "
        f"{slowest['planning_s']:.1f} s ({slowest['suite']} {slowest['name']})."
    )


def _table(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    header = [
        "case", "parameters", "mesh", "samples", "ops", "blocks", "kinds", "trace, s", "planning, s", "memory",
        "budget", "plan: blocks by method",
    ]  # fmt: skip
    return [header, *(_cells(result) for result in results)]


def _cells(result: dict[str, Any]) -> list[str]:
    methods = ", ".join(f"{count} {name}" for name, count in result.get("methods", {}).items())
    budget, least = result["budget_bytes"], result["least_bytes"]
    memory = quantities.size(result["memory_bytes"]) if "memory_bytes" in result else ""
    return [
        f"{result['suite']} {result['name']}",
        f"{quantities.digits(result['parameters'] / 1e9)}B",
        result["mesh"],
        str(result["samples"]),
        *(str(result.get(name, "")) for name in ("ops", "blocks", "kinds")),
        *(f"{result[name]:.1f}" for name in ("trace_s", "planning_s")),
        memory if least is None else f"at least {quantities.size(least)}",
        "none" if budget is None else quantities.size(budget),
        methods or (result["failure"] if least is None else "none fits"),
    ]


if __name__ == "__main__":
    sys.exit(main())
