"""The arguments of commands that can run on a Ray cluster, and their checks.

Invariant: Ray is imported after the command line has been checked.
"""

import argparse
import contextlib
import importlib.util
import re
from typing import Any

from alpa_cfp.cli.process import UserError
from alpa_cfp.cli.workload import check_alpa_has
from alpa_cfp_bench.case import LOCAL, Case, Cluster, check_fits

_OPTIONS = ("hosts", "devices_per_host")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that select a cluster."""
    parser.add_argument(
        "--ray", metavar="ADDRESS",
        help="run on the hosts of this Ray cluster, <ip>:<port>, or on one that is started here for the run: local; "
        "--mesh is then the mesh over all devices of all hosts",
    )  # fmt: skip
    parser.add_argument("--hosts", type=int, metavar="N", help="with --ray: on how many hosts (default: all)")
    parser.add_argument(
        "--devices-per-host", type=int, metavar="M", help="with --ray: on how many devices of each (default: all)"
    )


def read_cluster(arguments: argparse.Namespace, case: Case) -> Cluster | None:
    """The selected cluster; None for the devices of this process.

    Raises:
        UserError: the address or a number is wrong, or Ray is not installed.
        HostsMeshError: the mesh and the selected hosts have different numbers of devices.
    """
    address, numbers = arguments.ray, [getattr(arguments, name) for name in _OPTIONS]
    for name, number in zip(_OPTIONS, numbers, strict=True):
        option = name.replace("_", "-")
        if number is not None and address is None:
            raise UserError(f"--{option} says how much of a Ray cluster to use: name the cluster by --ray ADDRESS")
        if number is not None and number < 1:
            raise UserError(f"--{option} is {number}, and must be at least 1")
    if address is None:
        return None
    check_alpa_has(case, what="--ray")
    if address != LOCAL and not re.fullmatch(r"\S+:\d{1,5}", address):
        raise UserError(f"{address!r} is no address of a Ray cluster: --ray takes <ip>:<port>, or {LOCAL}")
    hosts, devices = numbers
    if hosts is not None and devices is not None:
        check_fits(case.mesh, hosts, devices)
    if importlib.util.find_spec("ray") is None:
        raise UserError('--ray needs Ray, which is not installed: pip install "ray>=2.60,<3", or leave --ray out')
    return Cluster(address, hosts, devices)


def devices_of(case: Case, cluster: Cluster | None) -> "contextlib.AbstractContextManager[Any]":
    """Context of alpa's logical mesh over the cluster's hosts; None for the devices of this process."""
    if cluster is None:
        return contextlib.nullcontext()
    from alpa_cfp_bench.cluster import attached

    return attached(case, cluster)
