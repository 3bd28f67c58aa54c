"""The module value: it crosses to other processes unchanged, and speaks alpa's language of protos."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule, HloSharding, XlaComputation
from alpa_cfp.spmd.partition import partition
from alpa_on_jax import errors
from alpa_on_jax.xla_extension import set_hlo_module_input_shardings
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    Case,
    annotate,
    assert_parts_equal,
    lower,
    run,
    split,
    values_of,
)
from unit.alpa_cfp.spmd.partition.op_cases import CONTRACTIONS, INDEXING, LOOPS, STRUCTURE

pytestmark = pytest.mark.slow

X, W = np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8), np.ones((8, 4), np.float32)


def _dot(x, w):
    return jax.lax.erf(x @ w)


def _annotated() -> HloModule:
    return annotate(lower(_dot, (X, W), (True, False)), MESH_2X2, [split(MESH_2X2, "x", "y"), split(MESH_2X2, "y", "")])


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_module_comes_back_from_bytes_as_an_equal_one(partitioned):
    module = _annotated()
    if partitioned:
        module.partitioned = partition(module)
    back = XlaComputation(module.as_serialized_hlo_module_proto()).get_hlo_module()
    assert back == module
    assert_parts_equal(run(back, partition(back), (X, W)), values_of(_dot, (X, W)))


def test_another_process_reads_the_same_module(tmp_path):
    module = _annotated()
    module.partitioned = partition(module)
    path = tmp_path / "module"
    path.write_bytes(module.as_serialized_hlo_module_proto())
    program = (
        "import sys\n"
        "from alpa_cfp.spmd.module.hlo_module import HloModule\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "module = HloModule.from_serialized(data)\n"
        "sys.stdout.write(module.to_string())\n"
    )
    answer = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert answer.stdout == module.to_string()


def test_the_text_is_that_of_the_per_device_program_once_there_is_one():
    module = _annotated()
    assert "tensor<4x8xf32>" in module.to_string()
    module.partitioned = partition(module)
    assert "tensor<2x4xf32>" in module.to_string()
    assert "tensor<4x8xf32>" not in module.to_string()


def test_a_copy_can_be_changed_by_itself():
    module = lower(_dot, (X, W))
    copy = module.copy()
    set_hlo_module_input_shardings(copy, [split(MESH_2X2, "x", "").to_proto(), split(MESH_2X2, "", "").to_proto()])
    assert module.input_protos is None
    assert copy.input_protos is not None


def test_shardings_are_given_as_protos_in_alpas_form():
    module = _annotated()
    first = module.spmd_parameters_shardings()[0].to_proto()
    assert list(first.tile_assignment_dimensions) == [2, 2]
    assert list(first.tile_assignment_devices) == [0, 1, 2, 3]
    assert len(module.spmd_output_sharding().to_proto().tuple_shardings) == 1


def test_shardings_come_back_from_their_bytes():
    module = annotate(lower(lambda a, b: (a @ b, a), (X, W)), MESH_2X2, [split(MESH_2X2, "x", "y"), None])
    for sharding in (*module.spmd_parameters_shardings(), module.spmd_output_sharding()):
        data = sharding.to_proto().SerializeToString()
        assert HloSharding(data).to_proto().SerializeToString() == data
    back = HloSharding(module.spmd_output_sharding().to_proto().SerializeToString()).to_proto()
    assert [list(proto.tile_assignment_devices) for proto in back.tuple_shardings] == [
        list(sharding.to_proto().tile_assignment_devices) for sharding in module.output_shardings or ()
    ]


def test_the_shardings_that_alpa_tells_a_module_of_are_those_that_it_has():
    module = _annotated()
    module.infer_spmd_shardings()
    inputs, output = module.spmd_parameters_shardings(), module.spmd_output_sharding()
    module.set_spmd_parameters_shardings([HloSharding(s.to_proto().SerializeToString()) for s in inputs])
    module.set_spmd_output_sharding(HloSharding(output.to_proto().SerializeToString()))
    with pytest.raises(errors.InternalError, match="tested was partitioned for other shardings of its parameters"):
        module.set_spmd_parameters_shardings(inputs[::-1])
    with pytest.raises(errors.InternalError, match="tested was partitioned for other shardings of its results"):
        module.set_spmd_output_sharding(inputs[0])


def test_shardings_of_a_module_that_has_none_are_an_error():
    with pytest.raises(ValueError, match="no shardings yet"):
        lower(_dot, (X, W)).spmd_parameters_shardings()


def test_an_alias_gives_a_result_its_parameters_sharding():
    module = annotate(lower(lambda a, b: (a + 1, b @ b.T), (X, X)), MESH_2X2, [split(MESH_2X2, "", "y"), None])
    module.setup_alias((0,), 0, ())
    assert module.output_shardings[0] == split(MESH_2X2, "", "y")


def test_an_alias_does_not_change_a_sharding_that_was_set():
    module = lower(lambda a: a + 1, (X,))
    annotate(module, MESH_2X2, [split(MESH_2X2, "", "y")], [split(MESH_2X2, "x", "")])
    module.setup_alias((0,), 0, ())
    assert module.output_shardings[0] == split(MESH_2X2, "x", "")


def _called(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _called_in_a_loop(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda y: y.sum() < 3, _called, x)


def _printed(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x)
    return x


def _printed_in_order(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x, ordered=True)
    return x


@pytest.mark.parametrize("function", [_called, _called_in_a_loop, _printed, _printed_in_order])
def test_a_program_that_calls_back_into_python_is_refused(function):
    with pytest.raises(errors.HostCallbackError, match=r"tested: .*python_cpu_callback"):
        lower(function, (np.ones((8, 16), np.float32),))


CASES = {
    f"{kind}: {name}": case
    for kind, group in (
        ("structure", STRUCTURE),
        ("contractions", CONTRACTIONS),
        ("indexing", INDEXING),
        ("loops", LOOPS),
        ("complex", {"sum": Case(lambda x: (x * 1j).sum(0), (np.ones((4, 4), np.float32),))}),
    )
    for name, case in group.items()
}


@pytest.mark.parametrize("name", CASES)
def test_a_module_that_is_read_again_has_the_same_ops(name):
    # Parts of a program are cut out of a module that has been read, and read as modules of their own.
    def names(module):
        with mlir.context():
            parsed = mlir.parse(module.bytecode)
            return [op.name for op in mlir.walk(mlir.entry_block(mlir.main_function(parsed)))]

    module = CASES[name].module()
    assert names(HloModule.from_stablehlo("again", module.bytecode)) == names(module)
