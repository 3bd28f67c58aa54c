"""Each kind of op: one device's op computes its part of what the global op computes."""

import pytest

from unit.alpa_cfp.spmd.helpers import MESH_2X4, MESHES, mesh_id, seed_of
from unit.alpa_cfp.spmd.partition.op_cases import CONTRACTIONS, INDEXING, LOOPS, STRUCTURE

pytestmark = pytest.mark.slow

CASES = STRUCTURE | CONTRACTIONS | INDEXING | LOOPS


def test_no_case_hides_another_of_its_name():
    assert len(CASES) == sum(map(len, (STRUCTURE, CONTRACTIONS, INDEXING, LOOPS)))


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
@pytest.mark.parametrize("name", CASES)
def test_every_device_computes_its_part_however_each_value_is_sharded(name, mesh):
    CASES[name].assert_right_with_any_shardings(mesh, seed_of(f"{name} {mesh.shape}"))


@pytest.mark.parametrize("name", CASES)
def test_every_device_computes_its_part_with_propagated_shardings(name):
    CASES[name].assert_right_with_propagated_shardings(MESH_2X4, seed_of(name))
