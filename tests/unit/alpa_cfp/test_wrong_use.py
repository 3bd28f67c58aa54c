"""What CFP says to who asks for something that cannot be; each case is the call of a user."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import pytest

from alpa_cfp import CFPOption
from alpa_cfp.database import ProfileValueError
from alpa_cfp.database.encoding import mesh_shape_from, profile_from_text
from alpa_cfp.database.values import text_digest
from alpa_cfp.errors import OptionError, PlanError, ProfilingError
from alpa_cfp.plan.plan import Plan
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process import setups, supervisor
from alpa_cfp.spmd.compile.executable import Client
from unit.alpa_cfp.profiling.programs import worker_pid


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"planning_budget_s": 0.0}, r"planning_budget_s=0\.0\): it must be above zero, or None"),
        ({"pruning_margin": 0.5}, r"pruning_margin=0\.5\): it must be at least 1"),
        ({"costs": "guess"}, r"costs='guess'\): it must be one of measure, "),
        ({"samples": 2.5}, r"samples=2\.5\): it must be a whole number of at least 1"),
        ({"search_memory_bytes": 0}, r"search_memory_bytes=0\): a search needs some bytes"),
        ({"memory_budget_bytes": 0}, r"memory_budget_bytes=0\): it must be above zero, or None"),
    ],
)
def test_an_option_that_cannot_be_says_what_it_may_be(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        CFPOption(**options)


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 0}'])
def test_a_file_that_is_no_plan_of_this_version_says_that_it_has_no_such_format(text: str) -> None:
    with pytest.raises(PlanError, match="is no plan that this version can read: it has no format"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        (lambda: text_digest("\ud800"), "the program's text is .*, but it must be valid Unicode"),
        (lambda: profile_from_text("{"), "profile is '{', but it must be a JSON text"),
        (lambda: mesh_shape_from("2 by 4"), "mesh_shape is '2 by 4', but it must be whole numbers with x between them"),
    ],
)
def test_what_is_no_part_of_a_profile_says_what_it_must_be(read: Callable[[], object], rule: str) -> None:
    with pytest.raises(ProfileValueError, match=rule):
        read()


def test_a_process_that_does_not_get_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_START_LIMIT_S", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = supervisor.Supervisor(MeasureOptions(progress=False), command)
    with pytest.raises(ProfilingError, match=r"no process of its own for profiling: it was not ready after 0\.1"):
        started.start(setups.setup_of(Client(jax.devices()[:1])))
    assert worker_pid(started) is None
