"""Which Ray cluster `alpa.init(cluster="ray")` goes to: the one that was named, and never one that was only found."""

import re
import socket
from collections.abc import Mapping

import pytest

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.cluster import attaching
from alpa_on_jax.ray_mesh.cluster.attaching import Attachment, attach, wanted_address

HERE, THERE = "10.0.0.1:6379", "10.0.0.2:6379"


@pytest.mark.parametrize(
    ("given", "environment", "connected_to", "expected"),
    [
        (THERE, {}, None, THERE),
        (None, {"RAY_ADDRESS": THERE}, None, THERE),
        (HERE, {"RAY_ADDRESS": THERE}, None, HERE),
        ("local", {"RAY_ADDRESS": THERE}, None, "local"),
        (None, {}, HERE, None),
        (None, {"RAY_ADDRESS": THERE}, HERE, None),
        (HERE, {}, HERE, None),
        ("auto", {}, None, "auto"),
    ],
    ids=["named", "by_variable", "named_before_variable", "of_its_own", "connected", "connected_before_variable",
         "connected_to_the_named", "any_on_purpose"],
)  # fmt: skip
def test_the_cluster_that_was_named_is_used(
    given: str | None, environment: Mapping[str, str], connected_to: str | None, expected: str | None
) -> None:
    assert wanted_address(given, environment, connected_to) == expected


@pytest.mark.parametrize("environment", [{}, {"RAY_ADDRESS": ""}])
def test_without_a_name_there_is_an_error_that_tells_the_ways_to_name_one(environment: Mapping[str, str]) -> None:
    with pytest.raises(errors.NoClusterError, match=r"no Ray cluster was named, .* RAY_ADDRESS, .*ray.init .*local"):
        wanted_address(None, environment, None)


def test_another_cluster_than_that_of_this_process_is_refused() -> None:
    with pytest.raises(errors.NoClusterError, match=f"'{THERE}' names another cluster than {HERE}"):
        wanted_address(THERE, {}, HERE)


def test_a_cluster_behind_a_proxy_is_refused() -> None:
    with pytest.raises(errors.NoClusterError, match="is the address of a Ray client server"):
        wanted_address("ray://10.0.0.1:10001", {}, None)


def test_where_nothing_listens_ray_is_not_even_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests may have connected this process.
    monkeypatch.setattr(attaching, "_connected_to", lambda: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(errors.NoClusterError, match=f"nothing can be reached at '{address}', .*refused"):
            attach(address, None, dict)


def test_a_process_that_was_connected_before_stays_connected() -> None:
    # It would import Ray and end the connection, which is not there.
    Attachment(None).leave()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            errors.NoClusterError.unanswered(HERE, ConnectionError("nobody there.\nmore")),
            "Ray cannot connect to .* nobody there. If something listens",
        ),
        (errors.ClusterAuthenticationError(HERE), "refuses the token of this process"),
    ],
)
def test_what_ray_says_becomes_what_to_do(error: errors.ClusterError, words: str) -> None:
    assert isinstance(error, OSError)
    assert re.search(words, str(error))
