"""A program is right whatever strategies its blocks get: combinations drawn at random equal the serial run."""

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


@pytest.mark.parametrize(
    ("model", "mesh", "num_micro_batches", "seed"),
    [(model, mesh, batches, seed) for model, mesh, batches, count in DRAWS for seed in range(count)],
)
def test_a_step_with_any_combination_of_strategies_equals_the_serial_one(
    model: str, mesh: str, num_micro_batches: int | None, seed: int
) -> None:
    planned(model, mesh, num_micro_batches, DrawnPlan(seed=seed))


@pytest.mark.parametrize(
    ("model", "mesh", "num_micro_batches", "seed"),
    [(model, mesh, batches, seed) for model, mesh, batches, count in DRAWS for seed in range((count + 1) // 2)],
)
def test_a_step_whose_sums_over_devices_stay_in_parts_equals_the_serial_one(
    model: str, mesh: str, num_micro_batches: int | None, seed: int
) -> None:
    planned(model, mesh, num_micro_batches, DrawnPlan(seed=100 + seed, kept=seed % 2 == 1, sums=True))
