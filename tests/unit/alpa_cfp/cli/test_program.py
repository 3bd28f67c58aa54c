"""`alpa-cfp plan my_module:train_step` plans a function of the user's own; what is wrong ends in one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from alpa_cfp import Plan
from alpa_cfp.cli import program
from alpa_cfp.cli.main import main
from alpa_cfp.cli.program import NamedMesh, read_mesh

pytestmark = pytest.mark.slow

SOURCE = """
import jax
import jax.numpy as jnp

number = 3
text = ("a",)


def train_step(weight, x, *, rate=0.1):
    loss, grad = jax.value_and_grad(lambda weight: jnp.mean((jnp.tanh(x @ weight) - 1) ** 2))(weight)
    return weight - rate * grad, loss


class Steps:
    inner = train_step


example = jax.ShapeDtypeStruct((32, 64), "float32"), jax.ShapeDtypeStruct((256, 32), "float32")
pair = example, {"rate": 0.1}
many_samples = example[0], jax.ShapeDtypeStruct((4096, 32), "float32")
too_many = (*example, 1.0)
of_lists = list(example)


def example_args():
    return example


def failing_args():
    raise RuntimeError("no batch today")


def of_state(state, batch):
    return jax.tree.map(lambda leaf: leaf @ leaf.T, state), batch


like_a_pair = example, {"rate": example[0]}
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module `mine` in the current folder."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("mine", "broken", "wrong"):
        sys.modules.pop(name, None)


def planned(words: str) -> Plan:
    assert main(["plan", *f"{words} --costs estimate --out plan.json".split()]) == 0
    return Plan.load("plan.json")


def test_a_function_of_the_current_folder_is_planned_and_its_plan_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned("mine:train_step --args mine:example_args --mesh data=2,model=2 --donate 0")
    said = capsys.readouterr()
    assert said.err == "planning mine:train_step on a 2x2 mesh\n"
    assert said.out.startswith(f"planned {len(plan.strategies)} blocks on a 2x2 mesh in ")
    assert said.out.endswith("written: plan.json\n")
    assert plan.signature is not None
    assert plan.signature.axis_names == ("data", "model")
    assert [each.donated for each in plan.signature.inputs] == [True, False]
    function = sys.modules["mine"].train_step
    weight, x = jnp.full((32, 64), 0.1), jnp.full((256, 32), 0.5)
    expected = jax.tree.map(np.asarray, jax.jit(function)(weight, x))
    for result, value in zip(plan.jit(function)(weight, x), expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), value, rtol=1e-5)


@pytest.mark.parametrize("args", ["mine:example", "mine:pair"])
def test_arguments_are_a_tuple_or_a_pair_with_those_by_keyword(args: str) -> None:
    plan = planned(f"mine:Steps.inner --args {args} --mesh all=4")
    assert plan.mesh_shape == (4,)
    assert ("kwargs['rate']" in plan.in_shardings) == (args == "mine:pair")


def test_a_tuple_and_a_dict_that_the_function_takes_as_they_are_are_no_pair() -> None:
    plan = planned("mine:of_state --args mine:like_a_pair --mesh all=4")
    assert list(plan.in_shardings) == ["args[0][0]", "args[0][1]", "args[1]['rate']"]
    assert plan.in_shardings["args[1]['rate']"] == PartitionSpec()


def test_a_target_takes_a_program_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "mine:train_step --args mine:example --target h100:1x4"
    plan = planned(f"{words} --mesh data=2,model=2")
    assert plan.signature is not None
    assert (plan.mesh_shape, plan.signature.axis_names) == ((2, 2), ("data", "model"))
    assert planned(words).mesh_shape == (4,)


ARGS = "--args mine:example"
MESH = "--mesh data=2,model=2 --costs estimate"


def test_a_step_whose_samples_are_named_goes_in_micro_batches_where_it_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "mine:train_step --args mine:many_samples --mesh data=2 --memory-mb 0.6"
    assert main(["plan", *f"{words} --costs estimate --out plan.json".split()]) == 2
    assert "no plan fits" in capsys.readouterr().err
    plan = planned(f"{words} --batch-argnums 1")
    assert plan.signature is not None
    assert plan.signature.micro_batches is not None
    assert plan.signature.micro_batches.batch_argnums == (1,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"nowhere:step {ARGS} {MESH}", "nowhere:step: there is no module 'nowhere' in "),
        (f"broken:step {ARGS} {MESH}", "broken cannot be imported: ModuleNotFoundError: No module named 'nothing_of"),
        (f"wrong:step {ARGS} {MESH}", "wrong cannot be imported: ZeroDivisionError: division by zero ("),
        (f"mine:stop {ARGS} {MESH}", "mine:stop: there is nothing called 'stop' in mine"),
        (f"mine:number {ARGS} {MESH}", "mine:number is a int, and not a function that can be planned"),
        (f"mine {ARGS} {MESH}", "the program is 'mine': it is to be written MODULE:NAME"),
        (f"mine:train_step {MESH}", "--args is missing: it names the arguments of mine:train_step"),
        (f"mine:train_step --args mine {MESH}", "--args is 'mine': it is to be written MODULE:NAME"),
        (f"mine:train_step --args mine:text {MESH}", "the function does not take the arguments in mine:text: missing"),
        (f"mine:train_step --args mine:too_many {MESH}", "the function does not take the arguments in mine:too_many"),
        (f"mine:train_step --args mine:of_lists {MESH}", "mine:of_lists is a list, and is to be a tuple with"),
        (f"mine:train_step --args mine:failing_args {MESH}", "mine:failing_args fails when it is called: RuntimeError"),
        (f"mine:of_state --args mine:texts {MESH}", "mine:texts: there is nothing called 'texts' in mine"),
        (f"mine:train_step {ARGS} --mesh 2x4", "'2x4' is no mesh with names: for a program of your own, say the mesh"),
        (f"mine:train_step {ARGS}", "there is no --mesh: for a program of your own, say the mesh as --mesh data=2"),
        (f"mine:train_step {ARGS} --mesh a=64", "a 64-device mesh needs 64 devices, and there are 8"),
        (
            f"mine:train_step {ARGS} {MESH} --donate 2",
            "--donate 2: the positional arguments in mine:example are",
        ),
        (
            f"mine:train_step {ARGS} {MESH} --batch-argnums 1 2",
            "--batch-argnums 2: the positional arguments in mine:example are",
        ),
        (f"mine:train_step {ARGS} {MESH} --model gpt", "--model is for the bench's models: leave it out"),
        (f"mine:train_step {ARGS} {MESH} --micro-batches 2", "--micro-batches is for the bench's models"),
        (f"mine:train_step {ARGS} {MESH} --ray local", "--ray is for the bench's models"),
        (f"mine:train_step {ARGS} {MESH} --memory-mb 0.001", "no plan fits"),
        (
            f"mine:train_step {ARGS} --mesh data=2 --costs compile",
            "--costs compile and --batch go with a target",
        ),
        ("--args mine:example", "--args is for a program of your own: name it first, as MODULE:NAME"),
        ("--donate 0", "--donate is for a program of your own"),
        ("--batch-argnums 0", "--batch-argnums is for a program of your own"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == 2
    assert f"alpa-cfp plan: {message}" in capsys.readouterr().err.splitlines()[-1]


def test_arguments_that_are_no_arrays_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(f"{SOURCE}\nnamed = {{'name': 'x'}}, 1.0\n")
    assert main(["plan", *f"mine:of_state --args mine:named {MESH}".split()]) == 2
    assert "args[0]['name'] is a str, and not an array" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["data", "data=0", "data=2,", "data=2,data=4", "2=data", "data=2 model=4"])
def test_a_text_that_names_no_mesh_is_refused(text: str) -> None:
    with pytest.raises(program.UserError, match="is no mesh with names"):
        read_mesh(text)


def test_axes_have_the_order_of_the_text() -> None:
    assert read_mesh("model=4,data=2") == NamedMesh(("model", "data"), (4, 2))
