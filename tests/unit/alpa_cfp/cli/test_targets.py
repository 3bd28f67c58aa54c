"""`alpa-cfp plan --target` plans for devices that are not here; what is wrong ends in one line."""

from pathlib import Path

import pytest

from alpa_cfp import Plan
from alpa_cfp.cli.main import main
from alpa_cfp.cli.targets import PUBLISHED

pytestmark = pytest.mark.slow

TINY_MLP = "plan --target h100:1x8 --costs estimate --model mlp --size tiny"


@pytest.mark.parametrize(("target", "mesh", "shape"), [
    ("h100:1x8", "", (8,)),
    ("h100:2x8", "", (2, 8)),
    ("h100:1x8", "--mesh 2x4", (2, 4)),
    ("v5e:2x4", "", (8,)),
])  # fmt: skip
def test_the_mesh_is_that_of_hosts_and_their_devices_unless_another_one_is_named(
    target: str, mesh: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    words = f"plan --target {target} {mesh} --costs estimate --model mlp --size batch=64 hidden=64 --out"
    assert main([*words.split(), str(tmp_path / "plan.json")]) == 0
    assert Plan.load(tmp_path / "plan.json").mesh_shape == shape


def test_estimates_are_those_of_the_target(tmp_path: Path) -> None:
    times_s = []
    for name in ("h100", "a100"):
        words = f"plan --target {name}:1x8 --costs estimate --model mlp --out"
        assert main([*words.split(), str(tmp_path / "plan.json")]) == 0
        times_s.append(Plan.load(tmp_path / "plan.json").predicted_s)
    assert times_s[0] < times_s[1] < 1e-2


def test_published_sizes_are_named_by_suite_and_case() -> None:
    assert PUBLISHED["llama-7b"].hidden == 4096
    assert PUBLISHED["gpt-1.3b"].layers == 24


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target h10:1x8", "there is no chip called 'h10'. Did you mean h100?"),
        ("--target h100:1x8 --model llama-7c", "there is no model 'llama-7c': --model takes one of"),
        ("--target h100:1x8 --ray local", "--target plans for devices that are not here: leave --ray out"),
        ("--target h100:1x8 --micro-batches 2", "--target plans a step without micro-batches"),
        ("--target h100:1x8 --batch 8", "--batch is 8: it is the samples, at least 1, of a step of"),
        ("--target h100:1x8 --model llama-7b --size tiny", "llama-7b has its published size"),
        ("--target h100:1x8 --model mlp --costs measure", "CFPOption(costs='measure') wants to run programs on h100"),
        (f"{TINY_MLP.removeprefix('plan ')} --mesh 2x3", "h100:1x8 has 8 devices, and a mesh of it has as many"),
        ("--costs compile", "--costs compile and --batch go with a target"),
        ("--batch 8", "--costs compile and --batch go with a target"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == 2
    assert f"alpa-cfp plan: {message}" in capsys.readouterr().err.splitlines()[-1]
