"""Two hosts that have addresses of their own: two network namespaces of this machine, joined by a pair of interfaces.

Each has a Ray node with a token; a program in the first one uses both. Nothing else can be reached from there, so what
listens at a wrong address, or is looked for at one, fails here. Skipped where the user may not make namespaces.

Invariant: the namespaces are of this run only. Whatever is in them at the end was started here and is ended, and then
they are deleted.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from alpa_on_jax.ray_mesh.cluster.hosts import CPU_DEVICE
from integration.serial import assert_equal_up_to_rounding, expected_steps

PROGRAM = Path(__file__).with_name("program_on_two_hosts.py")
PORT, NUM_DEVICES = 6379, 4
_START_LIMIT_S, _PROGRAM_LIMIT_S, _END_LIMIT_S = 60.0, 240.0, 30.0


@dataclass(frozen=True)
class Host:
    """A network namespace, and the folder of the Ray node in it.

    Attributes:
        name: Of the namespace.
        address: Its only one, beside that of loopback.
        folder: Where the Ray node keeps everything.
    """

    name: str
    address: str
    folder: Path

    def command(self, *words: str) -> list[str]:
        """`words` as a command in the namespace."""
        return ["ip", "netns", "exec", self.name, *words]

    def processes(self) -> list[int]:
        """What runs in it."""
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def environment(self, token: str | None) -> dict[str, str]:
        """For a process in it that knows this token, or none."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        known = {} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        return kept | known | {"RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}


def ip(*words: str) -> str:
    """What the command `ip` says.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Two namespaces that reach each other and nothing else, without a process."""
    if shutil.which("ip") is None:
        pytest.skip("there is no command `ip` (iproute2) to make network namespaces with")
    with tempfile.TemporaryDirectory(prefix="alpa-ns-", ignore_cleanup_errors=True) as folder:
        hosts = [
            Host(f"alpa{os.getpid()}{letter}", f"198.51.100.{number}", Path(folder) / letter)
            for number, letter in enumerate("ab", 1)
        ]
        with contextlib.ExitStack() as undo:
            try:
                for host in hosts:
                    ip("netns", "add", host.name)
                    undo.callback(ip, "netns", "delete", host.name)
                    undo.callback(end_all_in, host)
                first, second = (host.name for host in hosts)
                ip(*f"link add veth netns {first} type veth peer name veth netns {second}".split())
                for host in hosts:
                    ip(*f"-netns {host.name} address add {host.address}/24 dev veth".split())
                    for interface in ("lo", "veth"):
                        ip(*f"-netns {host.name} link set {interface} up".split())
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
            for host in hosts:
                (host.folder / "ray").mkdir(parents=True)
            yield hosts
    assert not {host.name for host in hosts} & set(ip("netns", "list").split())


def end_all_in(host: Host) -> None:
    """End every process in a namespace, and hold that none is left."""
    end = time.monotonic() + _END_LIMIT_S
    while processes := host.processes():
        assert time.monotonic() < end, f"processes of {host.name} that cannot be ended: {processes}"
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def token() -> str:
    return secrets.token_hex(32)


@pytest.fixture(scope="module")
def address(hosts: list[Host], token: str) -> Iterator[str]:
    """A Ray node in each namespace, the first of which is the head, at this address."""
    head, other = hosts
    address = f"{head.address}:{PORT}"
    with contextlib.ExitStack() as ending:
        for host, role in (
            (head, ["--head", f"--port={PORT}", "--include-dashboard=false"]),
            (other, [f"--address={address}"]),
        ):
            ending.enter_context(ray_node(host, role, token))
        yield address


@contextlib.contextmanager
def ray_node(host: Host, role: Sequence[str], token: str) -> Iterator[None]:
    """A Ray node in a namespace, up; ended at the end, with its whole group of processes."""
    words = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host.address}"),
        *(
            "--num-cpus=4",
            f"--resources={json.dumps({CPU_DEVICE: NUM_DEVICES})}",
            f"--object-store-memory={100 * 2**20}",
        ),
    ]
    log = host.folder / "start.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            host.command(*words, *role),
            env=host.environment(token),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + _START_LIMIT_S
        while "Ray runtime started" not in (said := log.read_text()):
            assert process.poll() is None, f"the Ray node of {host.name} has ended: {said}"
            assert time.monotonic() < end, f"the Ray node of {host.name} is not up: {said}"
            time.sleep(0.1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_program(host: Host, token: str | None, *words: str) -> dict[str, Any]:
    """What the program says at its end, run in a namespace with this token or none."""
    done = subprocess.run(
        host.command(sys.executable, str(PROGRAM), *words),
        env=host.environment(token) | {"PYTHONPATH": str(PROGRAM.parents[1])},
        capture_output=True,
        text=True,
        timeout=_PROGRAM_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Ray shows what the hosts write among it.
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


@pytest.fixture(scope="module")
def programs(
    hosts: list[Host], address: str, token: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What the program found with the token, without one and with another one; "steps" is what it computed.

    They run together: Ray takes 20 s to give up where the token is wrong.
    """
    folder = tmp_path_factory.mktemp("program")
    with ThreadPoolExecutor(3) as pool:
        running = {
            "token": pool.submit(run_program, hosts[0], token, address, str(folder)),
            "no token": pool.submit(run_program, hosts[0], None, address),
            "another token": pool.submit(run_program, hosts[0], secrets.token_hex(32), address),
        }
        found = {name: program.result() for name, program in running.items()}
    with np.load(folder / "steps.npz") as steps:
        found["token"]["steps"] = dict(steps)
    return found


@pytest.fixture
def result(programs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return programs["token"]


def test_each_host_of_the_mesh_is_in_a_namespace_of_its_own(hosts: list[Host], result: dict[str, Any]) -> None:
    assert sorted(result["addresses"]) == [host.address for host in hosts]
    links = [subprocess.check_output(host.command("readlink", "/proc/self/ns/net"), text=True) for host in hosts]
    assert sorted(result["namespaces"]) == sorted(link.strip() for link in links)
    assert os.readlink("/proc/self/ns/net") not in result["namespaces"]
    assert result["shape"] == [2, NUM_DEVICES]


@pytest.mark.parametrize(("method", "num_micro_batches"), [("ilp", None), ("zero3", 2), ("cfp", None)])
def test_training_steps_between_namespaces_equal_the_serial_steps(
    result: dict[str, Any], method: str, num_micro_batches: int | None
) -> None:
    expected = [(step.state, step.metrics, step.grads) for step in expected_steps("mlp", num_micro_batches, 2)]
    leaves = [result["steps"][f"{method}-{number}"] for number in range(len(jax.tree.leaves(expected)))]
    assert_equal_up_to_rounding(jax.tree.unflatten(jax.tree.structure(expected), leaves), expected)


def test_parts_are_measured_on_the_hosts_of_both_namespaces(result: dict[str, Any]) -> None:
    assert result["profiled"] == [f"{NUM_DEVICES}+{NUM_DEVICES}"]


@pytest.mark.parametrize("given", ["no token", "another token"])
def test_a_program_without_the_token_is_refused(programs: dict[str, dict[str, Any]], given: str) -> None:
    assert programs[given]["error"] in ("ClusterAuthenticationError", "NoClusterError")
    assert "RAY_AUTH_TOKEN" in programs[given]["says"]
