"""Pipelines over two hosts with 4 devices each against the serial run; which cases, `integration.pipelines` says."""

import pytest

from integration.pipelines import Case, cases


@pytest.mark.parametrize("case", cases("on two hosts"), ids=str)
def test_what_a_pipeline_over_hosts_gives_equals_the_serial_run(initialised: None, case: Case) -> None:
    meshes = case.hold().get_last_executable().mesh_group.meshes
    assert [mesh.shape for mesh in meshes] == [(1, 8 // case.stages)] * case.stages
    assert len({mesh.node_ips[0] for mesh in meshes}) == 2
