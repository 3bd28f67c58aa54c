"""Predictions of a device: what is kept of a chip is compared with that chip, and what fitted the model counts nowhere.

No program is compiled here: schedules are kept texts, which the program takes where there are some.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from alpa_cfp.targets.chips import Chip
from benchmarks import device_predictions
from benchmarks.device_predictions import kept_of, name_of, text_of
from benchmarks.device_programs import programs

pytestmark = pytest.mark.slow

SIZES = (64, 256, 512, 1024)
COPY = """HloModule jit_run, is_scheduled=true, entry_computation_layout={()->f32[]}

ENTRY %main (a: f32[33554432]) -> f32[33554432] {
  %a = f32[33554432]{0} parameter(0)
  ROOT %copy = f32[33554432]{0} copy(%a)
}
"""
COPIED_BYTES = 2 * 4 * 33554432


def row(kind: str, name: str, seconds: float) -> dict[str, object]:
    return {"kind": kind, "name": name, "times": 1, "median_s": seconds, "spread": 0.0, "samples_s": [seconds] * 3}


def measured_on(chip: Chip, folder: Path, seconds: float) -> Sequence[str]:
    """The options for copies that all took so many seconds on a chip, with the schedule of each."""
    names = [f"copy of {size}" for size in SIZES]
    rows = [row("dispatch", "one addition", 1e-5), *(row("copy", name, seconds) for name in names)]
    file = folder / "rates.json"
    file.write_text(json.dumps({"device": chip.device_kind, "results": rows}))
    for name in names:
        (folder / f"{name.replace(' ', '_')}.hlo").write_text(COPY)
    return ["--measured", str(file), "--texts", str(folder), "--no-results"]


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_what_is_kept_of_a_chip_was_measured_on_it_and_can_be_built_again(name: str) -> None:
    chip, known = Chip.named(name), programs()
    report = json.loads(kept_of(chip).read_text())
    assert report["device"] == chip.device_kind
    assert not report["quick"]
    rows = report["results"]
    assert all(each["name"] in known[each["kind"]] for each in rows)
    assert len({each["name"] for each in rows}) == len(rows)
    assert sum(each["kind"] == "dispatch" for each in rows) == 1


def test_of_the_chip_that_the_constants_were_fitted_on_half_is_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device_predictions.main(measured_on(Chip.named("h100"), tmp_path, 1e-4)) == 0
    told = capsys.readouterr().out
    assert f"({len(SIZES) // 2})" in told.splitlines()[-1]
    assert told.count("| held out |") == len(SIZES)  # in the line of each, and in the table
    assert told.count("| fitted |") == len(SIZES)


def test_of_another_chip_all_is_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chip = Chip.named("h200")
    seconds = COPIED_BYTES / chip.memory_bytes_per_s
    assert device_predictions.main(["--chip", "h200", *measured_on(chip, tmp_path, seconds)]) == 0
    told = capsys.readouterr().out
    assert f"({len(SIZES)})" in told.splitlines()[-1]
    assert "fitted" not in told
    # By the bandwidth of this chip: of the H100's it would be 1.7.
    assert all(1.1 < float(line.split("|")[-1]) < 1.3 for line in told.splitlines()[: len(SIZES)])


def test_what_was_measured_on_another_device_is_refused(tmp_path: Path) -> None:
    words = measured_on(Chip.named("h200"), tmp_path, 1e-4)
    with pytest.raises(SystemExit, match="is of NVIDIA H200, and h100 is NVIDIA H100 80GB HBM3"):
        device_predictions.main(words)


def test_a_chip_of_which_nothing_is_kept_needs_a_file() -> None:
    with pytest.raises(SystemExit, match="measured on a100"):
        kept_of(Chip.named("a100"))


def test_a_page_says_on_what_the_constants_were_fitted() -> None:
    h100, h200 = Chip.named("h100"), Chip.named("h200")
    assert "fitted to half of an earlier measurement" in text_of(h100)
    assert "fitted on an H100" in text_of(h200)
    assert "nothing was fitted on an H200, so that all programs are held out" in text_of(h200)
    assert name_of(h100) != name_of(h200)
