"""The compilers of GPUs and TPUs are called as for attached devices, or it is said what to install.

What loads a plugin runs in a process of its own, once for each kind: libtpu logs as it likes, and could end the tests.
"""

import json
import os
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import pytest

from alpa_cfp.targets import topology
from alpa_cfp.targets.chips import Chip, chip_names
from alpa_cfp.targets.errors import TargetCompilerError
from alpa_cfp.targets.target import target

KINDS = [
    pytest.param(
        "gpu", marks=pytest.mark.skipif(find_spec("jax_cuda12_plugin") is None, reason="no jax-cuda12-plugin")
    ),
    pytest.param("tpu", marks=pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")),
]
TARGETS = {
    "gpu": ["h100:1x8", *(f"{name}:1x8" for name in chip_names() if Chip.named(name).kind == "gpu"), "h100:4x8"],
    "tpu": ["v5e:2x4", "v6e:2x4", "v4:2x2x2", "v5p:2x2x2", "v5e:4x4"],
}
# One device's program: a matrix product with a result in its argument's buffer, and two sums over all devices.
STEP = """
module @step {
  func.func @main(%x: tensor<512x512xbf16> {tf.aliasing_output = 0 : i32}, %w: tensor<512x512xbf16>)
      -> (tensor<512x512xbf16>, tensor<512x512xbf16>) {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<512x512xbf16>, tensor<512x512xbf16>) -> tensor<512x512xbf16>
    %a = "stablehlo.all_reduce"(%y) <{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}> ({
      ^bb0(%p: tensor<bf16>, %q: tensor<bf16>):
        %s = stablehlo.add %p, %q : tensor<bf16>
        stablehlo.return %s : tensor<bf16>
    }) : (tensor<512x512xbf16>) -> tensor<512x512xbf16>
    %b = "stablehlo.all_reduce"(%w) <{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}> ({
      ^bb0(%p: tensor<bf16>, %q: tensor<bf16>):
        %s = stablehlo.add %p, %q : tensor<bf16>
        stablehlo.return %s : tensor<bf16>
    }) : (tensor<512x512xbf16>) -> tensor<512x512xbf16>
    return %a, %b : tensor<512x512xbf16>, tensor<512x512xbf16>
  }
}
"""
# In the process that loads the plugin: compiles what the tests look at, and prints it.
LOOK = """
import dataclasses, json, os, sys
names, step = json.load(sys.stdin)
before = dict(os.environ)
import jax, numpy
from jax._src import xla_bridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from alpa_cfp.select.calibration import calibration_programs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets import topology
from alpa_cfp.targets.errors import TargetCompilerError
from alpa_cfp.targets.target import target

def look(devices):
    coordinates = [list(each.coords) for each in devices] if devices[0].platform == "tpu" else []
    return {"kind": devices[0].device_kind, "processes": [each.process_index for each in devices],
            "coordinates": coordinates, "ids": [each.id for each in devices]}

def compiled(bytecode, devices, **options):
    return dataclasses.asdict(topology.compile_for(bytecode, devices, **options))

devices = {name: topology.devices_of(target(name)) for name in names}
after = dict(os.environ)
changed = {name: after.get(name) for name in before | after if before.get(name) != after.get(name)}
first, last = devices[names[0]], devices[names[-1]]
sharding = NamedSharding(Mesh(numpy.array(first), ("x",)), PartitionSpec("x"))
rows = jax.ShapeDtypeStruct((64, 512), "float32", sharding=sharding)
whole = str(jax.jit(lambda x: x.sum(0)).lower(rows).compiler_ir("stablehlo")).encode()
gathering = calibration_programs(LogicalMesh((8,)))[-1].partitioned.bytecode
try:
    topology.compile_for(step.encode(), last[:8], one_program_per_device=True)
    part = ""
except TargetCompilerError as error:
    part = str(error)
json.dump({
    "devices": {name: look(each) for name, each in devices.items()},
    "environment": changed,
    "step": compiled(step.encode(), first, one_program_per_device=True),
    "again": compiled(step.encode(), first, one_program_per_device=True),
    "apart": compiled(step.encode(), first, one_program_per_device=True, combine_sums=False),
    "whole": compiled(whole, first, one_program_per_device=False),
    "gathering": compiled(gathering, first, one_program_per_device=True),
    "part": part,
    "backends": list(xla_bridge._backends),
}, sys.stdout)
"""


@pytest.fixture(scope="module", params=KINDS)
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the process that loads the plugin has found, with the kind of its chips."""
    given = json.dumps([TARGETS[request.param], STEP])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], input=given, capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return {"asked": request.param, **json.loads(done.stdout)}


def sums_of(compiled: dict[str, Any]) -> int:
    return compiled["text"].count(" all-reduce(") + compiled["text"].count(" all-reduce-start(")


def test_each_chip_is_one_that_its_compiler_knows(seen: dict[str, Any]) -> None:
    for name, devices in seen["devices"].items():
        assert devices["kind"] == target(name).chip.device_kind
        assert len(devices["processes"]) == len(set(devices["ids"])) == target(name).num_devices


def test_devices_are_in_the_order_of_hosts_and_of_the_torus(seen: dict[str, Any]) -> None:
    for name, devices in seen["devices"].items():
        asked = target(name)
        if asked.torus is None:
            hosts = [number // asked.devices_per_host for number in range(asked.num_devices)]
            assert devices["processes"] == hosts
        else:
            dims = len(asked.torus)
            coordinates = [each[:dims] for each in devices["coordinates"]]
            assert coordinates == sorted(coordinates)
            assert [max(each) + 1 for each in zip(*coordinates, strict=True)] == list(asked.torus)
            assert [devices["processes"].count(host) for host in set(devices["processes"])] == [
                asked.devices_per_host
            ] * asked.hosts


def test_nothing_is_initialised_but_the_cpu_and_the_environment_is_left_as_it_was(seen: dict[str, Any]) -> None:
    assert seen["backends"] == ["cpu"]
    assert seen["environment"] == {}


def test_a_program_is_scheduled_and_tells_its_memory(seen: dict[str, Any]) -> None:
    step, matrix_bytes = seen["step"], 512 * 512 * 2
    assert "is_scheduled=true" in step["text"]
    assert step["argument_bytes"] == pytest.approx(2 * matrix_bytes, abs=1024)
    assert step["output_bytes"] == pytest.approx(2 * matrix_bytes, abs=1024)
    assert step["aliased_bytes"] == matrix_bytes
    assert step["seconds"] > 0


def test_the_same_program_compiles_to_the_same_text(seen: dict[str, Any]) -> None:
    assert seen["step"]["text"] == seen["again"]["text"]


def test_sums_are_joined_unless_they_are_to_stay_apart(seen: dict[str, Any]) -> None:
    assert (sums_of(seen["step"]), sums_of(seen["apart"])) == (1, 2)


def test_a_whole_program_is_partitioned_over_all_devices(seen: dict[str, Any]) -> None:
    assert sums_of(seen["whole"]) == 1
    # 8 rows of 64.
    assert seen["whole"]["argument_bytes"] == 8 * 512 * 4


def test_a_partitioned_program_of_the_project_compiles_as_it_is(seen: dict[str, Any]) -> None:
    assert "all-gather" in seen["gathering"]["text"]


def test_matrix_products_are_not_left_to_kernels_that_need_timing(seen: dict[str, Any]) -> None:
    text = seen["step"]["text"]
    assert ("__cublas" in text) == (seen["asked"] == "gpu")
    assert "__triton" not in text


def test_some_gpus_of_a_target_are_enough_but_not_some_tpus_of_a_slice(seen: dict[str, Any]) -> None:
    wanted = "" if seen["asked"] == "gpu" else "a program for 8 of the 16 devices of a slice"
    assert seen["part"].startswith(wanted)
    assert bool(seen["part"]) == bool(wanted)


def test_without_its_plugin_a_target_is_an_error_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(
        TargetCompilerError, match=r"GPUs needs jax-cuda12-plugin .*'alpa_cfp\[gpu-target\]'. No GPU and no driver"
    ):
        topology.devices_of(target("h100:1x8"))
    with pytest.raises(TargetCompilerError, match=r"TPUs needs libtpu .*'alpa_cfp\[tpu-target\]'"):
        topology.devices_of(target("v5e:2x4"))


@pytest.mark.parametrize(("name", "package"), [("h100:1x8", "jax-cuda12-plugin"), ("v5e:2x4", "libtpu")])
def test_another_version_of_a_plugin_is_refused_with_the_tested_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "0.0.1")
    with pytest.raises(TargetCompilerError, match=f"{package} 0.0.1 beside jax .* is not tested") as error:
        topology.devices_of(target(name))
    for jax_version, version in topology.TESTED[target(name).chip.kind].versions.items():
        assert f"{package} {version} beside jax {jax_version}" in str(error.value)


@pytest.mark.parametrize(("name", "package"), [("h100:1x8", "jax-cuda12-plugin"), ("v5e:2x4", "libtpu")])
def test_another_version_of_jax_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setattr(topology.jax, "__version__", "0.10.9")
    monkeypatch.setattr(metadata, "version", lambda _: "0.10.2")
    with pytest.raises(TargetCompilerError, match=f"{package} 0.10.2 beside jax 0.10.9 is not tested"):
        topology.compiler_version(target(name))


def test_a_tested_plugin_says_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology.jax, "__version__", "0.10.2")
    monkeypatch.setattr(metadata, "version", {"jax-cuda12-plugin": "0.10.2", "libtpu": "0.0.42.1"}.__getitem__)
    assert topology.compiler_version(target("h100:1x8")) == "jax-cuda12-plugin 0.10.2"
    assert topology.compiler_version(target("v5e:2x4")) == "libtpu 0.0.42.1"


@pytest.mark.skipif(find_spec("jax_cuda12_plugin") is not None, reason="jax offers the compiler here")
def test_where_jax_does_not_offer_the_compiler_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a plugin is installed, and jax has left it out."""
    monkeypatch.setattr(topology.jax, "__version__", "0.10.2")
    monkeypatch.setattr(metadata, "version", lambda _: "0.10.2")
    with pytest.raises(TargetCompilerError, match="jax does not offer the compiler for GPUs in this process"):
        topology.devices_of(target("h100:1x8"))


def test_a_gpu_without_a_description_is_refused() -> None:
    with pytest.raises(TargetCompilerError, match="does not know v5e: it has no description of a GPU"):
        topology.gpu_description(Chip.named("v5e"))


def test_gpus_are_described_as_hosts_of_one_partition() -> None:
    described = topology.description(target("h100:4x8"))
    assert (described["platform"], described["topology"]) == ("cuda", "1x4x8")
    text = described["target_config"]
    for part in ("core_count: 132", "memory_bandwidth: 3350000000000", "device_memory_size: 84942979072"):
        assert part in text
    assert "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES" in text


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("v5e:2x4", {"topology_name": "v5e:2x4", "chips_per_host_bounds": (2, 4, 1)}),
        ("v5e:4x4", {"topology_name": "v5e:4x4", "chips_per_host_bounds": (2, 2, 1)}),
        (
            "v4:2x2x2",
            {"topology_name": "v4:2x2x2", "chips_per_host_bounds": (2, 2, 1), "chip_config_name": "megacore"},
        ),
    ],
)
def test_slices_are_described_with_the_chips_of_a_host(name: str, described: dict[str, Any]) -> None:
    assert topology.description(target(name)) == {"platform": "tpu", **described}
