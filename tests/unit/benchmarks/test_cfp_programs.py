"""The plans that benchmarks record are told apart by how they are described."""

import pytest

from alpa_cfp_bench.workloads.sizes import TINY
from benchmarks.cfp_programs import step_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_each_candidate_of_a_block_has_a_word_of_its_own(model: str) -> None:
    step = step_of(model, TINY, (2, 2))
    for place, block in enumerate(step.block_candidates):
        plans = [
            [choice if other is block else 0 for other in step.block_candidates]
            for choice in range(len(block.candidates))
        ]
        words = [step.describe(plan).split()[place] for plan in plans]
        assert len(set(words)) == len(words)
