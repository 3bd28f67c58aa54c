"""`alpa-cfp bench` and `plan` on the hosts of a cluster: right, with all that a run on local devices brings back."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from alpa.device_mesh import get_global_cluster

from alpa_cfp import Plan
from alpa_cfp.cli.main import main
from alpa_cfp.errors import HostsError
from alpa_cfp_bench.case import METHODS, Case, Cluster
from alpa_cfp_bench.cluster import attached
from alpa_cfp_bench.workloads.sizes import TINY

ON_HOSTS = [name for name in METHODS if name not in ("propagation", "alpa-ilp-again")]
MLP = "--model mlp --size tiny --mesh 2x4"


def run(words: str, *more: str) -> int:
    """A command of `alpa-cfp`, after which nothing of it is left on the cluster."""
    code = main([*words.split(), *more])
    assert get_global_cluster() is None
    assert ray.is_initialized(), "it has ended a connection that it did not make"
    return code


def test_all_methods_but_plain_jit_are_right_and_kept(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, plan, database = tmp_path / "result.json", tmp_path / "plan.json", tmp_path / "profiles.sqlite"
    assert (
        run(
            f"bench --ray {cluster.address} --hosts 2 --devices-per-host 4 {MLP} --rounds 2 --copies 1",
            *("--json", str(kept), "--save-plan", str(plan), "--database", str(database)),
        )
        == 0
    )
    said = capsys.readouterr().out
    assert f"{len(ON_HOSTS)} of {len(ON_HOSTS)} methods give the serial run's loss and state" in said
    assert "\n2 hosts x 4 cpu (virtual) on " in said
    assert "\npropagation is left out: it is plain jax.jit of one process" in said
    content = json.loads(kept.read_text())
    assert list(content["methods"]) == ON_HOSTS
    assert [host["devices"] for host in content["machine"]["hosts"]] == [4, 4]
    assert content["profiled"] > 0
    for method in content["methods"].values():
        assert method["is_right"]
        assert method["memory_bytes"] > 0
        assert method["step"]["samples"] == 2
        assert "median_cpu_ms" not in method["step"]
    assert [each["kind"] for each in content["methods"]["data-parallel"]["collectives"]] == ["all-reduce"]
    assert math.prod(Plan.load(plan).mesh_shape) == 8, "of all logical shapes of the mesh the fastest is taken"


def test_the_parts_of_a_step_in_micro_batches_are_counted_as_on_local_devices(cluster: Any, tmp_path: Path) -> None:
    words = f"{MLP} --micro-batches 2 --rounds 1 --copies 1 --methods data-parallel zero2 --json"
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    assert run(f"bench {words}", str(here)) == 0
    assert run(f"bench --ray {cluster.address} {words}", str(there)) == 0
    local, on_hosts = (json.loads(file.read_text())["methods"] for file in (here, there))
    for method in ("data-parallel", "zero2"):
        assert on_hosts[method]["collectives"] == local[method]["collectives"] != []
        assert on_hosts[method]["memory_bytes"] == local[method]["memory_bytes"]


def test_a_plan_that_is_measured_on_hosts_can_be_explained(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    words = f"plan --ray {cluster.address} {MLP} --out"
    assert run(words, str(plan), "--database", str(tmp_path / "profiles.sqlite")) == 0
    assert "\nmeasured " in capsys.readouterr().out
    assert run("explain", str(plan)) == 0
    assert "time measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mesh 1x4", "the 1x4 mesh does not have the devices of 2 hosts x 4: give --mesh 2x4, or"),
        ("--mesh 2x4 --hosts 1", "the 2x4 mesh does not have the devices of 1 host x 4: give --mesh 1x4, or"),
        ("--mesh 3x4 --hosts 3", "the Ray cluster is too small: 3 nodes with "),
    ],
)
def test_a_mesh_that_the_hosts_do_not_form_is_one_line(
    cluster: Any, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert run(f"bench --ray {cluster.address} --model mlp --size tiny --methods alpa-ilp {words}") == 2
    assert f"alpa-cfp bench: {message}" in capsys.readouterr().err.splitlines()[-1]


def test_a_host_that_is_lost_is_one_line_and_the_next_run_has_a_mesh_again(cluster: Any) -> None:
    case, asked = Case("mlp", "2x4", TINY), Cluster(cluster.address)
    with pytest.raises(HostsError, match="a host of the Ray cluster failed or was lost: "):
        lose_a_host(case, asked)
    assert get_global_cluster() is None
    with attached(case, asked) as mesh:
        mesh.physical_mesh.sync_workers()


def lose_a_host(case: Case, cluster: Cluster) -> None:
    with attached(case, cluster) as mesh:
        ray.kill(mesh.physical_mesh.workers[1])
        # `ray.kill` does not wait for the process to end: until then the host still answers.
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            mesh.physical_mesh.sync_workers()
            time.sleep(0.1)


def test_pipelines_with_cfp_and_with_the_ilp_are_there_at_once_with_stages_that_alpa_chose(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    words = "--method pipeshard --hosts 2 --devices-per-host 1 --model mlp --size tiny --mesh 2x1 --micro-batches 2"
    words += " --pipeline-layers 2 --stage-costs compose --costs estimate --rounds 2 --json"
    database = ("--database", str(tmp_path / "profiles.sqlite"))
    assert run(f"bench --ray {cluster.address} {words}", str(kept), *database) == 0
    content = json.loads(kept.read_text())
    assert list(content["methods"]) == ["cfp-compose", "alpa-ilp"]
    assert content["are_interleaved"]
    assert [host["devices"] for host in content["machine"]["hosts"]] == [1, 1]
    for method in content["methods"].values():
        assert method["is_right"]
        assert [layer for stage in method["stages"] for layer in stage["layers"]] == [0, 1]
        costs = [stage["cost_ms"] for stage in method["stages"]]
        assert method["predicted_ms"] == pytest.approx(sum(costs) + max(costs))
    assert content["methods"]["cfp-compose"]["programs_to_choose"] == 0
    ilp = content["methods"]["alpa-ilp"]
    assert ilp["programs_to_choose"] == ilp["stage_programs"] > 0
    assert ilp["planning_parts_s"]["profile"] > 0
    said = capsys.readouterr()
    assert "2 of 2 methods give the serial run's loss and state" in said.out
    assert "it/s" not in said.err
