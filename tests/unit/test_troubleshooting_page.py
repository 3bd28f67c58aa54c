"""docs/troubleshooting.md has each message that a user can cause, and no other; each message occurs in a test.

What the messages are is read from the source (`messages`), so a new one without an entry fails here. An entry is a
heading in code, or a point of a list that begins with code: the beginning of a message, with `<...>` for what varies.

The last test looks for words: that a test quotes a message, or names its class, and not that it causes it. Messages
whose test matches them by what varies, or runs them in another process, are listed with the name of their test.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from unit.messages import LEAST_WORDS, ROOT, Message, messages, variable_parts, words_of

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "troubleshooting.md"

# The beginnings of texts that no user sees as a message of their own, by the reason.
NOT_A_USERS = {
    "the words of Python itself": ("module <> has no attribute",),
    "the reason in `<source> is no plan that this version can read`": (
        "<> is neither true nor false",
        "<> is no object",
        "<> is no text",
        "<> is no whole number",
        "<> is no list",
        "<> is no finite number",
        "<> is none of",
        "<> has no alternative <> of kind",
        "nothing moves from block <> to block",
    ),
    "the reason in `gradients are reduced in every micro-batch`, or nothing: XLA's partitioner takes over": (
        "<> uses a partial sum that was not reduced",
        "<>: no device has the part that device <> needs",
        "<>: a part of <> became <>",
        "<> is not covered",
        "a reduction over <> of a value that is partial over",
        "a value is partial over <>, along which it is split",
        "dim <> of size <> is not divided by its <> shards",
        "result <> is <>, not <>",
    ),
    "the reason in `The group cannot be used any more`, after what no rank sends": (
        "what arrived is no header of an array",
    ),
    "the reason in `AutoStageOption: cached_profile_result=<path> cannot be read`": ("it has a <> and no dictionary",),
    "the reason in `line <number> of the scheduled program`": (
        "it calls %<>, which does not exist",
        "it has no opcode after its shape",
        "it is no instruction: `%name = shape opcode(...)`",
        "its operand %<> does not stand before it",
        "its operands do not end",
        "its replica_groups are written in a way that is not known",
        "its result has no shape",
        "its sizes do not make a product (<>)",
        "the backend_config is not JSON",
        "the computation does not end",
        "the computation has no instructions",
        "the loop does not have a condition and a body",
    ),
    "the reason in `this is no scheduled program`": (
        "it begins with <> and not with HloModule",
        "it has no ENTRY computation",
        "its module is not scheduled",
    ),
    "a part of `there is no chip called <name>`": ("Did you mean <>?",),
    "the reason in `This is a mistake in alpa_cfp`": (
        "the gradients leave accumulate_grad in another sharding",
        "XLA communicates elements of the type <>, whose size is not known",
    ),
    "looked at by the commands before, with a message of their own": (
        "mesh <> needs <> devices, and this process has",
        "no model is called",
    ),
    "a part of `the mesh on <hosts> has ended`": ("because it was lost (<>)",),
    "a mistake in these packages, found where it is made": (
        "<> needs what other meshes compute (<>), but runs on a mesh that knows no others",
        "<> was partitioned for other shardings of its <>",
        "a virtual mesh is cut into the meshes of a pipeline twice",
        "the host has ended",
        "<> is not canonical: simplify the module first",
        "<> of several arrays has a region that is not one op",
        "<> says nothing about the layout of an array",
        "A pipeline marker of the kind <> cannot be differentiated",
        "Unknown mark type",
        "a combined profile needs at least one session",
        "a logical mesh has at most <> axes",
        "a problem needs a fix",
        "no parameter of <> matches",
        "samples of different rounds",
        "a sharding over <> devices does not fit the logical mesh",
        "axes <> overlap on the logical mesh",
        "only a partitioned module has a profile",
        "partitioning needs an annotated module",
        "pipeline marker <> has a start and no end",
        "pipeline marker <> starts or ends twice",
        "rng_normal takes two scalars of one dtype",
        "sharding <> has <> dims for a tensor of rank",
        "shardings of type <> are not supported",
        "slice_stages needs an annotated module",
        "some strategies of <> need a spec of operand <> and some do not",
        "stage <> uses a value that does not come through its start marker",
        "the module has no shardings yet",
        "tile assignment <> does not follow the axes of the logical mesh",
    ),
}

# Tests, and the beginnings of messages that they cause without quoting words that no other message has.
TESTED_BY = {
    "test_an_export_replaces_an_earlier_one_and_nothing_else": ("<> cannot be written: <>",),
    "test_wrong_use_is_one_line_that_says_what_to_do": ("<> cannot run <> on <>",),
    "test_ctrl_c_is_one_line_and_exit_code_130": ("alpa-cfp: interrupted; what was measured so far is kept",),
    "test_profiles_that_cannot_be_are_refused": ("<> is no mesh: whole numbers with x",),
    "test_a_forked_process_is_told_to_open_its_own": (
        "the profile database <> was opened by the process that this one was forked from",
    ),
    "test_list_of_an_empty_database_is_an_empty_table": ("alpa-cfp profiles: <> has no",),
    "test_a_file_that_is_no_sound_database_is_set_aside_with_its_reason": (
        "<> cannot be read as a profile database (<>). It",
    ),
    "test_a_file_cut_off_anywhere_is_set_aside": ("it is a few bytes long",),
    "test_what_is_no_export_at_all_is_refused": ("it is not JSON",),
    "test_an_export_with_something_wrong_says_what_and_adds_nothing": ("it must be a list",),
    "test_a_key_that_cannot_be_names_its_field_and_value": ("it must be a text without control characters",),
    "test_a_measured_profile_that_cannot_be_says_why": (
        "it must be a finite number",
        "it must be a text",
        "it must be one of",
    ),
    "test_a_failed_profile_says_that_nothing_was_measured": (
        "it needs <>, which this failed profile lacks",
        "only a measured profile has times",
    ),
    "test_a_limit_of_memory_below_zero_is_refused": ("memory_limit_bytes=<>",),
    "test_what_does_not_fit_together_is_refused_by_name": (
        "budget_bytes=<>",
        "has shape <>; (first's choices",
        "has shape <>; one entry for each",
        "holds NaN; use inf",
    ),
    "test_a_time_limit_that_is_none_is_refused": ("time_limit_s=<>",),
    "test_a_program_that_does_not_compile_costs_itself_only": ("a program cannot be profiled",),
    "test_where_no_other_process_can_be_had_this_one_measures_and_says_so": ("<>. Profiling goes on in this process",),
    "test_a_process_without_the_devices_of_the_mesh_is_refused": ("its devices are <>, and those of the mesh are",),
    "test_a_plan_for_something_else_is_refused": ("the plan is for another program",),
    "test_a_plan_made_on_devices_that_are_not_here_asks_for_some": (
        "the plan was made on devices that this process does not have",
    ),
    "test_an_unstacked_dim_is_gone_in_the_parts_and_has_no_xla_sharding": ("<> has an Unstacked dim",),
    "test_a_dim_that_its_chunks_do_not_divide_is_an_error_that_names_both": ("dim <> of length <> cannot be",),
    "test_a_sharding_that_does_not_fit_is_an_error_that_says_why": (
        "<>: <> leaves a dim unconstrained",
        "<>: <> names the mesh axis <> twice",
    ),
    "test_it_fails_with_a_clear_error_and_the_next_calls_work": (
        "<>=<> of type <> was not made by alpa.parallelize",
        "ShardParallel: devices=<> of type <> is no mesh",
        "auto_sharding_option=<> of type <> is no AutoShardingOption",
        "mesh_axis_names=<> must name each axis",
    ),
    "test_aliases_without_a_common_spec_are_an_error": ("a donated argument of shape <> and the result",),
    "test_a_result_that_is_no_array_is_an_error_that_names_function_and_type": ("a result is <> of type <>",),
    "test_a_cluster_of_an_unknown_kind_leaves_alpa_uninitialised": ("alpa.init: cluster=<> is neither",),
    "test_alpa_can_be_imported_where_ray_is_not_installed": ("No module named <>: alpa needs <> here, and Ray",),
    "test_an_array_that_does_not_come_is_an_error_that_names_what_came_instead": (
        "receiving <> from rank <>: it did not come within <> s. <>",
    ),
    "test_a_text_that_names_no_machine_is_an_error_with_the_fix": ("it is no text",),
    "test_a_wrong_file_is_an_error_with_the_field_its_value_and_the_fix": (
        "<> in <> is <>, but <>",
        "it is a list of texts: <>",
        "it is a text: <>",
    ),
    "test_links_that_cannot_be_are_refused": ("it must be positive",),
    "test_an_untested_jax_gives_one_error_that_names_the_tested_ones_and_the_way_to_try": (
        "alpa on stock JAX is tested with jax and jaxlib",
    ),
}


@dataclass(frozen=True)
class Entry:
    """An entry of the page.

    Attributes:
        texts: The beginnings of messages, with `<>` for what varies.
        section: The heading of its part of the page.
        advice: What the page says about it.
    """

    texts: tuple[str, ...]
    section: str
    advice: str


def entries() -> Iterator[Entry]:
    """What the page has entries for, in order."""
    section = ""
    for block in re.split(r"\n(?=#+ |- )", PAGE.read_text()):
        heading, _, below = block.partition("\n")
        if block.startswith("## "):
            section = heading.removeprefix("## ")
        elif block.startswith("### "):
            yield Entry(_code(heading.removeprefix("### ")), section, below.strip())
        elif block.startswith("- `"):
            whole = " ".join(block.removeprefix("- ").partition("\n\n")[0].split())
            codes = re.match(r"`[^`]*`(, `[^`]*`)*", whole)
            assert codes is not None, block
            yield Entry(_code(codes.group()), section, whole[codes.end() :].lstrip(": "))


def _code(text: str) -> tuple[str, ...]:
    if text.startswith("`` "):
        return (variable_parts(text.removeprefix("`` ").removesuffix(" ``")),)
    return tuple(variable_parts(code) for code in re.findall(r"`([^`]+)`", text))


def is_excused(message: Message) -> bool:
    return any(message.text.startswith(text) for texts in NOT_A_USERS.values() for text in texts)


def of_users() -> list[Message]:
    return [message for message in messages() if not is_excused(message)]


def shown(found: list[Message]) -> str:
    return "\n".join(f"{message.path}: {message.owner}: {message.text}" for message in found)


def test_each_message_that_a_user_can_cause_is_on_the_page() -> None:
    known = [text for entry in entries() for text in entry.texts]
    missing = [message for message in of_users() if not any(message.text.startswith(text) for text in known)]
    assert not missing, f"write an entry in {PAGE.name}, or say in NOT_A_USERS why it needs none:\n{shown(missing)}"


def test_each_entry_of_the_page_is_the_beginning_of_a_message() -> None:
    known = [message.text for message in of_users()]
    # Of an error whose text is what its callers say; messages() has those.
    known.append("<>: <>=<> <>")  # ArgnumsError
    known += ["CFPOption(<>=<>): <>", "HostLink(<>=<>): <>"]  # OptionError
    known.append("<> is <>, but <>")  # ProfileValueError
    stale = [text for entry in entries() for text in entry.texts if not any(each.startswith(text) for each in known)]
    assert not stale


def test_no_entry_is_there_twice() -> None:
    texts = [text for entry in entries() for text in entry.texts]
    # A rule may be one of two kinds of values.
    assert sorted(text for text in set(texts) if texts.count(text) > 1) == [
        "it must be a whole number of at least <>",
        "it must be one of <>",
    ]


def test_each_heading_says_what_to_do() -> None:
    silent = [entry for entry in entries() if not entry.section or (len(entry.texts) == 1 and not entry.advice)]
    assert not silent


@pytest.mark.parametrize("section", ["Installing and importing", "Memory", "Command line"])
def test_the_page_has_entries_where_one_looks_for_them(section: str) -> None:
    assert any(entry.section == section for entry in entries())


def test_what_needs_no_entry_exists() -> None:
    known = [message.text for message in messages()]
    texts = [text for texts in NOT_A_USERS.values() for text in texts]
    assert [text for text in texts if not any(each.startswith(text) for each in known)] == []


def test_each_message_or_its_class_occurs_in_a_test() -> None:
    absent = [message for message in of_users() if not is_quoted(message) and not is_listed(message)]
    assert not absent, f"cause each in a test as a user would, and match its words:\n{shown(absent)}"


def is_quoted(message: Message) -> bool:
    """Whether a test has words that only this message has, or the name of a class that has no other message."""
    own = (run for run in runs_of(message.text) if messages_with()[run] == 1)
    if any(run in quoted_runs() for run in own):
        return True
    alone = message.is_wording and "." not in message.owner and not message.owner.endswith("_warning")
    return alone and message.owner in names_in_tests()


def is_listed(message: Message) -> bool:
    return any(message.text.startswith(text) for texts in TESTED_BY.values() for text in texts)


def test_the_tests_that_are_listed_exist() -> None:
    assert [name for name in TESTED_BY if name not in names_in_tests()] == []
    known = [message.text for message in of_users()]
    texts = [text for texts in TESTED_BY.values() for text in texts]
    assert [text for text in texts if not any(each.startswith(text) for each in known)] == []


def runs_of(text: str) -> set[str]:
    """Each two to four words next to each other in the fixed parts of a text, of eight characters at least."""
    parts = [words_of(part) for part in re.split(r"<>|[.;:,()]", text)]
    runs = {" ".join(words[i : i + n]) for words in parts for n in (2, 3, 4) for i in range(len(words) - n + 1)}
    return {run for run in runs if len(run) >= 8}


@cache
def messages_with() -> Counter[str]:
    """For each run of words, how many different messages have it."""
    return Counter(run for text in {message.text for message in messages()} for run in runs_of(text))


@cache
def quoted_runs() -> frozenset[str]:
    """Each two to four words next to each other in a text of the tests; without docstrings, comments and this file."""
    texts = [words_of(text) for tree in _trees() for text in _texts(tree)]
    return frozenset(
        " ".join(words[i : i + n]) for words in texts for n in (2, 3, 4) for i in range(len(words) - n + 1)
    )


@cache
def names_in_tests() -> frozenset[str]:
    """The names and attributes in the code of the tests, and their functions' own."""
    found = set()
    for tree in _trees():
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                    found.add(name)
                case _:
                    pass
    return frozenset(found)


@cache
def _trees() -> list[ast.Module]:
    tests = Path(__file__).parents[1]
    return [ast.parse(path.read_text()) for path in sorted(tests.rglob("*.py")) if path != Path(__file__)]


def _texts(tree: ast.Module) -> Iterator[str]:
    """The texts in a module's code; a regular expression's escapes are taken out."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value.replace("\\", "")


def test_a_message_has_words() -> None:
    assert all(len(words_of(message.text)) >= LEAST_WORDS for message in messages())
