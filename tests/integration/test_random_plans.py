"""A program is right whatever strategies its blocks get: combinations drawn at random equal the serial run.

With ALPA_CFP_DRAWS=3 in the environment three times as many are drawn.
"""

import os

import pytest

from integration.planned import DrawnPlan, planned

pytestmark = pytest.mark.slow

# Model, mesh, micro-batches, how many combinations.
DRAWS = [
    ("mlp", "2x4", None, 12),
    ("mlp", "1x8", 2, 6),
    ("mlp", "2x2", 2, 6),
    ("gpt", "2x4", None, 8),
    ("gpt", "1x8", 2, 3),
    ("bert", "2x2", None, 3),
    ("moe", "2x4", None, 4),
    ("moe", "1x8", None, 2),
    ("conv", "2x4", None, 4),
    ("wide_resnet", "1x8", None, 2),
]
TIMES = int(os.environ.get("ALPA_CFP_DRAWS", "1"))


@pytest.mark.parametrize(
    ("model", "mesh", "num_micro_batches", "seed"),
    [(model, mesh, batches, seed) for model, mesh, batches, count in DRAWS for seed in range(TIMES * count)],
)
def test_a_step_with_any_combination_of_strategies_equals_the_serial_one(
    model: str, mesh: str, num_micro_batches: int | None, seed: int
) -> None:
    planned(model, mesh, num_micro_batches, DrawnPlan(seed=seed))


@pytest.mark.parametrize(
    ("model", "mesh", "num_micro_batches", "seed"),
    [(model, mesh, batches, seed) for model, mesh, batches, count in DRAWS for seed in range(TIMES * (count + 1) // 2)],
)
def test_a_step_whose_sums_over_devices_stay_in_parts_equals_the_serial_one(
    model: str, mesh: str, num_micro_batches: int | None, seed: int
) -> None:
    planned(model, mesh, num_micro_batches, DrawnPlan(seed=100 + seed, kept=seed % 2 == 1, sums=True))
