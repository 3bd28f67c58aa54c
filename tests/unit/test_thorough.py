"""What `make thorough` lists are tests that exist: a renamed one would stay in `make test` without a word."""

from pathlib import Path

from thorough import THOROUGH

TESTS = Path(__file__).parents[1]


def test_each_test_that_is_listed_exists() -> None:
    sources = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert [name for name in THOROUGH if f"def {name}(" not in sources] == []
