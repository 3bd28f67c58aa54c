"""How far are the models of collectives on GPUs and TPUs from times that others measured and published?

Takes `collective_numbers.toml`, the published numbers with their sources; gives what the models
(`alpa_cfp/targets/interconnect.py`) say for the same bytes, devices and links. Prints a line a number and the median
error by group, and writes `results/collective_models-*`. Nothing is run on a device. Invariant: a number that a
constant of the models was fitted to, or that shaped one of their formulas, is shown but does not judge them.
"""

import argparse
import itertools
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpa_cfp import quantities
from alpa_cfp.targets.interconnect import (
    GpuInterconnect,
    HostLink,
    Interconnect,
    Network,
    TorusInterconnect,
    collective_s,
)
from benchmarks import runner
from benchmarks.reports import Row
from benchmarks.runner import Benchmark

_NUMBERS = Path(__file__).parent / "collective_numbers.toml"
_GOAL = 0.2
_USUAL_DEVICES = 8
_HEADER = ("chip", "collective", "devices", "bytes a device", "published", "model", "error", "use", "source")
_TEXT = (
    "Published times of collectives against the models of `alpa_cfp/targets`. `devices` are hosts x devices of each, "
    "or some dims of a torus; `bytes a device` are those of its operand; `error` is the model's time by the published "
    "one, less one. Numbers for fitting shaped the model and do not judge it; unclear ones do not say where the group "
    "lies."
)
# How many times nccl-tests counts the bytes of n devices for its bus bandwidth.
_BUS_FACTORS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}


@dataclass(frozen=True, slots=True)
class Published:
    """One published time.

    Attributes:
        kind: XLA's name of the collective.
        size_bytes: Of one device's operand.
        seconds: The time.
        groups: Which devices take part.
        interconnect: The links, by the vendor.
        devices: Hosts x devices of each, or the dims of a torus.
        described: The table that it is of: chip, use, source, address.
    """

    kind: str
    size_bytes: float
    seconds: float
    groups: tuple[tuple[int, ...], ...]
    interconnect: Interconnect
    devices: str
    described: Mapping[str, str]

    @property
    def group(self) -> tuple[str, str, str]:
        """The chip, the kind, and how far the group reaches."""
        reach = "on a torus"
        if isinstance(self.interconnect, GpuInterconnect):
            reach = "within a host" if self.interconnect.hosts == 1 else "across hosts"
        return self.described["chip"], self.kind, reach


def published(path: Path = _NUMBERS) -> list[Published]:
    """The numbers of the file, in its order."""
    content = tomllib.loads(path.read_text())
    return [each for table in content["tables"] for each in _of_table(table, content["links"][table["links"]])]


def main(argv: Sequence[str] | None = None) -> int:
    """Hold the models against every number."""
    options = runner.parser(__doc__).parse_args(argv)
    return Benchmark("collective_models", _TEXT, _HEADER, _rows, _verdict).run(_results(options), options)


def _results(options: argparse.Namespace) -> Iterator[Row]:
    del options
    for group, numbers in itertools.groupby(sorted(published(), key=lambda each: each.group), lambda each: each.group):
        yield {"group": list(group), "numbers": [_compared(each) for each in numbers]}


def _compared(number: Published) -> Row:
    model_s = collective_s(number.kind, number.size_bytes, number.groups, number.interconnect)
    return {
        "devices": number.devices,
        "size_bytes": number.size_bytes,
        "published_s": number.seconds,
        "model_s": model_s,
        "error": model_s / number.seconds - 1,
        **{name: number.described[name] for name in ("use", "source", "address")},
    }


def _of_table(table: Mapping[str, Any], links: Mapping[str, Any]) -> Iterator[Published]:
    interconnect, groups, devices = _torus(table, links) if "dims" in table else _gpus(table, links)
    count = len(groups[0]) if table["kind"] != "collective-permute" else len(groups)
    for published_bytes, value in table["rows"]:
        gathered = table["bytes"] == "whole" and table["kind"] == "all-gather"
        counted = published_bytes * _BUS_FACTORS[table["kind"]](count)
        seconds = value * 1e-6 if table["unit"] == "us" else counted / (value * 1e9)
        size = published_bytes / count if gathered else published_bytes
        yield Published(table["kind"], size, seconds, groups, interconnect, devices, table)


def _gpus(
    table: Mapping[str, Any], links: Mapping[str, Any]
) -> tuple[GpuInterconnect, tuple[tuple[int, ...], ...], str]:
    hosts, per_host = table["hosts"], table["per_host"]
    network = Network(**links["network"]) if "network" in links and hosts > 1 else None
    link = HostLink(links["kind"], links["bytes_per_s"], reduces=links.get("reduces", False))
    on_host = max(per_host, _USUAL_DEVICES)
    interconnect = GpuInterconnect(links["generation"], hosts, on_host, link, network)
    group = tuple(host * on_host + device for host in range(hosts) for device in range(per_host))
    # nccl-tests sends from each device to the next one.
    pairs = tuple(zip(group, group[1:] + group[:1], strict=True))
    groups = pairs if table["kind"] == "collective-permute" else (group,)
    return interconnect, groups, quantities.shape((hosts, per_host))


def _torus(
    table: Mapping[str, Any], links: Mapping[str, Any]
) -> tuple[TorusInterconnect, tuple[tuple[int, ...], ...], str]:
    dims = tuple(table["dims"])
    interconnect = TorusInterconnect(dims, tuple(links["wraps"]), links["bytes_per_s"])
    places = list(itertools.product(*map(range, dims)))
    apart = [dim for dim in range(len(dims)) if dim not in table["over"]]
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(places):
        groups.setdefault(tuple(place[dim] for dim in apart), []).append(number)
    over = quantities.shape(dims[dim] for dim in table["over"])
    return interconnect, tuple(map(tuple, groups.values())), f"{over} of {quantities.shape(dims)}"


def _rows(result: Row) -> list[list[str]]:
    chip, kind, _ = result["group"]
    return [
        [
            chip,
            kind,
            each["devices"],
            quantities.size(each["size_bytes"]),
            quantities.time(each["published_s"]),
            quantities.time(each["model_s"]),
            f"{each['error']:+.0%}",
            each["use"],
            f"[{each['source']}]({each['address']})",
        ]
        for each in result["numbers"]
    ]


def _verdict(results: Sequence[Row]) -> str:
    """The median error of the numbers that judge, of all and by group."""
    errors = {tuple(result["group"]): _errors(result) for result in results}
    every = [error for of_group in errors.values() for error in of_group]
    if not every:
        return "No number judges the models."
    said = [
        f"{chip} {kind} {reach}: {statistics.median(of_group):.0%} of {len(of_group)}"
        for (chip, kind, reach), of_group in errors.items()
        if of_group
    ]
    within = sum(error <= _GOAL for error in every)
    reaches = [
        f"{reach} {statistics.median(found):.0%} of {len(found)}"
        for reach in ("within a host", "across hosts", "on a torus")
        if (found := [error for group, of_group in errors.items() if group[2] == reach for error in of_group])
    ]
    return (
        f"Median error of {len(every)} published numbers: {statistics.median(every):.0%} (goal: {_GOAL:.0%} at most); "
        f"{within} of them are within {_GOAL:.0%}. {', '.join(reaches)}. By group: {'; '.join(said)}."
    )


def _errors(result: Row) -> list[float]:
    return [abs(each["error"]) for each in result["numbers"] if each["use"] == "judging"]


if __name__ == "__main__":
    raise SystemExit(main())
