"""Options of alpa's passes: known inside the context, to its thread only."""

from concurrent.futures import ThreadPoolExecutor

from alpa_on_jax.xla_extension import clear_pass_context, set_pass_context
from alpa_on_jax.xla_extension.pass_context import get_option


def test_an_option_is_known_until_the_context_ends():
    set_pass_context({"auto_sharding::enable": True})
    try:
        assert get_option("auto_sharding::enable") is True
        assert get_option("another", 7) == 7
    finally:
        clear_pass_context()
    assert get_option("auto_sharding::enable") is None


def test_a_context_replaces_the_one_before():
    set_pass_context({"a": 1})
    set_pass_context({"b": 2})
    try:
        assert (get_option("a"), get_option("b")) == (None, 2)
    finally:
        clear_pass_context()


def test_another_thread_does_not_see_the_options():
    set_pass_context({"a": 1})
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(get_option, "a").result() is None
    finally:
        clear_pass_context()


def test_options_are_those_of_the_time_when_they_were_set():
    options = {"a": 1}
    set_pass_context(options)
    options["a"] = 2
    try:
        assert get_option("a") == 1
    finally:
        clear_pass_context()
