"""The programs that users are shown run as they stand: those under examples/, and the one in the README."""

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` outside the checkout."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=Path(sys.executable).parent, capture_output=True, text=True, check=False
    )


def test_the_gpt_example_equals_the_serial_run_at_each_step() -> None:
    result = run(str(ROOT / "examples" / "gpt_step.py"), "--steps", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every step equals the serial run" in result.stdout


def test_the_plain_jax_example_equals_jax_jit_at_each_step() -> None:
    result = run(str(ROOT / "examples" / "plain_jax.py"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every step equals jax.jit" in result.stdout


def test_the_program_in_the_readme_computes_its_training_step() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    # loss = mean((x w - y)^2) over 16 x 64 entries with x = y = 1, w = 0: each gradient is -2 / 64.
    result = run("-c", blocks[0] + "\nprint(weight.shape, float(weight.min()), float(weight.max()))")
    assert result.returncode == 0, result.stderr
    shape, low, high = result.stdout.splitlines()[-1].rsplit(maxsplit=2)
    assert shape == "(32, 64)"
    assert [float(low), float(high)] == pytest.approx([0.1 * 2 / 64] * 2, rel=1e-6)


def test_the_nnx_example_equals_jax_jit_at_each_step() -> None:
    result = run(str(ROOT / "examples" / "nnx_step.py"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every step equals jax.jit" in result.stdout


# A model that compiles fast, as arguments and as settings.
TINY = [
    *("--steps=6", "--batch-size=8", "--sample=20"),
    *("--layers=1", "--hidden=32", "--heads=4", "--length=16"),
]
# Adam divides small gradients by their own size, and so makes rounding larger; measured: 1e-7 to 1e-6.
ROUNDING = 1e-5
STEPS = ("cfp", "serial", "reordered")


@pytest.fixture(scope="module")
def gpt() -> Iterator[Any]:
    """The modules of examples/train_gpt.py by name, and what the tests run of them."""
    folder = str(ROOT / "examples")
    sys.path.insert(0, folder)
    flags = os.environ["XLA_FLAGS"]
    parts = {
        name: importlib.import_module(f"gpt.{name}")
        for name in ("agreement", "checkpoints", "loop", "model", "text", "training")
    }
    program = importlib.import_module("train_gpt")
    assert os.environ["XLA_FLAGS"] == flags
    size = parts["model"].Size(layers=1, hidden=32, heads=4, length=16)
    settings = parts["training"].Settings(steps=6, batch_size=8, learning_rate=3e-3, seed=0, size=size)
    steps = {method: parts["training"].make_step(method, (2, 4), "estimate") for method in STEPS}
    yield SimpleNamespace(program=program, main=program.main, settings=settings, steps=steps, **parts)
    sys.path.remove(folder)


def trained(gpt: Any, method: str, folder: Path | None = None, **options: Any) -> Any:
    """A run of the tiny model, with checkpoints in `folder`."""
    if folder is None:
        return gpt.loop.train(gpt.steps[method], gpt.settings, method, **options)
    with gpt.checkpoints.Checkpoints(folder) as checkpoints:
        return gpt.loop.train(gpt.steps[method], gpt.settings, method, checkpoints, **options)


def params_of(result: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.state.params)]


def test_the_losses_of_all_methods_agree_and_the_model_is_sampled(
    gpt: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert gpt.main([*TINY, "--picture", str(tmp_path / "curves.png")]) == 0
    printed = capsys.readouterr().out
    assert "over 6 steps cfp and ilp stay as close to the serial run as the serial run to itself" in printed
    differences = re.search(r"step +cfp +ilp +reordered\n(?:.*\n)* +6 +(\S+) +(\S+) +(\S+)\n", printed)
    assert differences is not None
    assert all(float(each) <= ROUNDING for each in differences.groups())
    assert "class Reader:\n    def __init__(self" in printed
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def honest(gpt: Any) -> dict[str, Any]:
    """The curves of the tiny model under each of STEPS."""
    return {method: trained(gpt, method).curve for method in STEPS}


def fault_of(gpt: Any, faulty: Any, honest: dict[str, Any]) -> str | None:
    """What is found wrong with a curve; None if rounding explains how it differs."""
    return gpt.agreement.agreements(honest | {"faulty": faulty})["faulty"].fault


def with_gradients(gpt: Any, change: Callable[[Any, Any, dict[str, Any]], Any]) -> Any:
    """The curve of a serial run with the gradients that `change` gives for (grad function, params, batch)."""

    def step(state: Any, batch: dict[str, Any]) -> tuple[Any, jax.Array]:
        def loss(params: Any, batch: dict[str, Any]) -> jax.Array:
            return gpt.model.mean_loss(state.apply_fn(params, batch["inputs"]), batch["labels"])

        return state.apply_gradients(grads=change(jax.grad(loss), state.params, batch)), loss(state.params, batch)

    return gpt.loop.train(jax.jit(step), gpt.settings, "faulty").curve


def only_of_one_weight(right: Any, wrong: Any) -> Any:
    """The gradients `right`, but for one of the MLP's weights those of `wrong`."""
    name = "['params']['layer_0']['up']['kernel']"
    return jax.tree_util.tree_map_with_path(
        lambda path, right, wrong: wrong if jax.tree_util.keystr(path) == name else right, right, wrong
    )


def test_runs_that_differ_only_in_how_they_are_computed_are_explained_by_rounding(
    gpt: Any, honest: dict[str, Any]
) -> None:
    assert gpt.agreement.agreements(honest)["cfp"].fault is None
    assert fault_of(gpt, with_gradients(gpt, lambda grad, params, batch: grad(params, batch)), honest) is None


# Not a doubled gradient: Adam divides it by its own size, so it shows only through clipping, at step 7 of the default.
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda grad, params, batch: jax.tree.map(jnp.zeros_like, params), id="none"),
        pytest.param(
            lambda grad, params, batch: grad(params, {name: sequences[1:] for name, sequences in batch.items()}),
            id="without_the_first_sequence",
        ),
    ],
)
def test_a_wrong_gradient_of_one_weight_is_not_explained_by_rounding(
    gpt: Any, honest: dict[str, Any], wrong: Any
) -> None:
    faulty = with_gradients(
        gpt, lambda grad, params, batch: only_of_one_weight(grad(params, batch), wrong(grad, params, batch))
    )
    assert "more than the 1.0e-05 that rounding explains" in str(fault_of(gpt, faulty, honest))


def test_a_learning_rate_that_is_one_percent_off_is_not_explained_by_rounding(gpt: Any, honest: dict[str, Any]) -> None:
    settings = replace(gpt.settings, learning_rate=1.01 * gpt.settings.learning_rate)
    faulty = gpt.loop.train(gpt.steps["serial"], settings, "faulty").curve
    assert "more than the 1.0e-05 that rounding explains" in str(fault_of(gpt, faulty, honest))


def test_a_loss_that_is_a_thousandth_too_large_ends_the_program_with_exit_code_1(
    gpt: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_step(method: str, mesh: tuple[int, int], costs: str) -> Any:
        del mesh, costs
        serial = gpt.steps["reordered" if method == "reordered" else "serial"]
        if method != "ilp":
            return serial

        def scaled(state: Any, batch: dict[str, Any]) -> tuple[Any, jax.Array]:
            state, loss = serial(state, batch)
            return state, 1.001 * loss

        return scaled

    monkeypatch.setattr(gpt.program, "make_step", make_step)
    assert gpt.main([*TINY, "--sample", "0"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: ilp: at step 1 the training loss is 1.0e-03 from that of the serial run" in printed
    assert "FAILED: cfp" not in printed


def drawing_apart(gpt: Any, begin: float, validation: float = 1.5) -> Any:
    """The curve of a run of 200 steps with losses around 2, `begin` off and ten times more each 20 steps, up to 1%."""
    steps = np.arange(200)
    losses = 2 * (1 + np.minimum(begin * 10 ** (steps / 20), 1e-2))
    return gpt.training.Curve(losses.tolist(), {200: validation})


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        ({"begin": 1e-8}, None),
        ({"begin": 5e-8, "validation": 1.51}, None),
        ({"begin": 5e-6}, "more than the"),
        ({"begin": 1e-8, "validation": 1.53}, "the last validation loss is 2.0%"),
        ({"begin": float("nan")}, "at step 1 the training loss is nan"),
        ({"begin": 1e-8, "validation": float("nan")}, "the last validation loss is nan%"),
    ],
)
def test_a_run_may_draw_apart_as_the_reordered_one_does_but_not_long_before_it(
    gpt: Any, faulty: dict[str, float], words: str | None
) -> None:
    curves = {
        "faulty": drawing_apart(gpt, **faulty),
        "serial": drawing_apart(gpt, 0.0),
        "reordered": drawing_apart(gpt, 1e-8),
    }
    fault = gpt.agreement.agreements(curves)["faulty"].fault
    assert fault is None if words is None else words in fault


@pytest.mark.parametrize("method", ["cfp", "serial"])
def test_a_run_that_is_stopped_and_resumed_is_the_run_without_interruption_bit_for_bit(
    gpt: Any, tmp_path: Path, method: str
) -> None:
    trained(gpt, method, tmp_path, stop_at=2)
    resumed, whole = trained(gpt, method, tmp_path, resume=True), trained(gpt, method)
    assert resumed.curve.losses == whole.curve.losses
    assert resumed.curve.validation == whole.curve.validation
    for actual, expected in zip(params_of(resumed), params_of(whole), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_checkpoint_of_one_method_goes_on_under_another(gpt: Any, tmp_path: Path) -> None:
    trained(gpt, "cfp", tmp_path, stop_at=3)
    resumed, whole = trained(gpt, "serial", tmp_path, resume=True), trained(gpt, "serial")
    assert resumed.curve.losses == pytest.approx(whole.curve.losses, rel=ROUNDING)
    # Not the parameters: the gradient of a key's bias is zero but for rounding, which Adam makes as large as any other.
    assert resumed.curve.validation == pytest.approx(whole.curve.validation, rel=ROUNDING)


def test_ctrl_c_ends_the_run_after_its_step_and_saves_it(
    gpt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = gpt.text.training_batch

    def pressed(seed: int, step: int, batch_size: int, length: int) -> Any:
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return batch(seed, step, batch_size, length)

    monkeypatch.setattr(gpt.loop, "training_batch", pressed)
    before = signal.getsignal(signal.SIGINT)
    assert gpt.main([*TINY, "--method", "serial", "--checkpoint", str(tmp_path)]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert "interrupted after step 3; saved in" in capsys.readouterr().err
    with gpt.checkpoints.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 3


def test_what_does_not_fit_is_one_line_and_exit_code_2(
    gpt: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(gpt, "serial", tmp_path / "run", stop_at=1)
    saved = ["--method", "serial", "--checkpoint", str(tmp_path / "run")]
    cases = {
        "needs 64 devices, there are 8": ["--mesh", "8x8"],
        "it must be two numbers above zero": ["--mesh", "8"],
        "is not divisible by twice --heads 5": ["--heads", "5"],
        "--resume needs --checkpoint DIR": ["--resume"],
        "there is no checkpoint in": ["--method", "serial", "--checkpoint", str(tmp_path / "none"), "--resume"],
        "has checkpoints already": saved,
        "a batch of one has no other order": ["--batch-size", "1"],
        "batch_size 8, not 4": [*saved, "--batch-size", "4", "--resume"],
    }
    for words, arguments in cases.items():
        assert gpt.main([*TINY, *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_a_batch_is_a_function_of_seed_and_step_and_the_held_out_text_is_not_trained_on(gpt: Any) -> None:
    first = gpt.text.training_batch(0, 1, 4, 16)
    np.testing.assert_array_equal(first["inputs"], gpt.text.training_batch(0, 1, 4, 16)["inputs"])
    np.testing.assert_array_equal(first["inputs"][:, 1:], first["labels"][:, :-1])
    for seed, step in ((0, 2), (1, 1)):
        assert not np.array_equal(first["inputs"], gpt.text.training_batch(seed, step, 4, 16)["inputs"])
    text = gpt.text.standard_library()
    assert text.validation[:2000].tobytes() not in text.training.tobytes()
