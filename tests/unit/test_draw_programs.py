"""tools/draw_programs.py loses no batch to one that ends its process, and names the program in which it did."""

from pathlib import Path

import pytest

from tools.draw_programs import Begun, begun_in, counts, run_batch

pytestmark = pytest.mark.slow

PROGRAM = "def program(x0: 'float32[8]', x1: 'int8[]'):\n    v0 = x0 + 1\n    return v0, x1, \n"
TESTS = str(Path(__file__).parents[1])
LINE = f"values on 2x4, seed 7, of sum_, dot:\n{PROGRAM}"


def a_file_of_one_test(folder: Path, does: str) -> str:
    """A file of one test, which says that it begins a program and then does something."""
    path = folder / "test_ends.py"
    text = f"import logging, os, time\ndef test_it():\n    logging.getLogger('x').info('%s', {LINE!r})\n    {does}\n"
    path.write_text(text)
    return str(path)


def test_a_log_says_which_programs_were_begun() -> None:
    log = f"INFO     a:b.py:1 {LINE}INFO     c:d.py:2 of something else: 3\nINFO     a:b.py:1 {LINE}"
    expected = Begun("values", "2x4", ("sum_", "dot"), ("float32", "int8"), LINE)
    assert begun_in(log) == (expected, expected)


@pytest.mark.parametrize(
    ("does", "limit_s", "how"),
    [
        ("os.abort()", 60, "ended with status -6"),
        ("time.sleep(600)", 20, "more than 20 s"),
    ],
)
def test_a_batch_that_ends_says_how_and_in_which_program(tmp_path: Path, does: str, limit_s: float, how: str) -> None:
    batch = run_batch(1, 0, limit_s, a_file_of_one_test(tmp_path, does))
    assert batch.failure is not None
    assert how in batch.failure
    assert PROGRAM.splitlines()[1] in batch.failure


def test_a_batch_whose_test_fails_says_what_pytest_says(tmp_path: Path) -> None:
    batch = run_batch(1, 0, 60, a_file_of_one_test(tmp_path, "assert 1 == 2"))
    assert batch.failure is not None
    assert "assert 1 == 2" in batch.failure


def test_a_batch_that_is_right_is_counted(tmp_path: Path) -> None:
    batch = run_batch(1, 0, 60, a_file_of_one_test(tmp_path, "assert os.environ['ALPA_CFP_PROGRAMS'] == '1'"))
    assert batch.failure is None
    counted = counts([batch, batch])
    assert counted["mesh"] == {"2x4": 2}
    assert counted["kind of op"] == {"sum_": 2, "dot": 2}


def test_another_seed_draws_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "test_draws.py"
    path.write_text(
        f"import logging, sys\nsys.path.append({TESTS!r})\nimport conftest\n"
        f"from hypothesis import given, settings\nfrom hypothesis import strategies as st\n"
        f"@settings(max_examples=20)\n@given(st.integers(0, 2**16))\ndef test_it(seed):\n"
        f"    logging.getLogger('x').info('%s', {LINE!r}.replace('seed 7', f'seed {{seed}}'))\n"
    )
    texts = [[program.text for program in run_batch(1, seed, 60, str(path)).begun] for seed in (0, 0, 1)]
    assert len(texts[0]) == 20
    assert texts[0] == texts[1] != texts[2]
