"""Writes docs/reference.md: the public API from its docstrings, and the help of the commands.

Takes the sources, which griffe2md reads without importing them, and the argument parsers of `alpa-cfp`; gives back the
page. Invariant: nothing on the page is written by hand but the headings here, so a change of a docstring or of an
option changes the page (`tests/unit/test_reference_page.py` holds the committed page against it).

    python tools/reference_page.py docs/reference.md
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from griffe import Alias, Class, GriffeLoader, Module, Object, Parser
from griffe2md import ConfigDict, default_config, render_object_docs

ROOT = Path(__file__).resolve().parents[1]
# What the page has of each object: nothing beside its docstring, or the members that users call.
OBJECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("autoshard", ()),
    ("in_micro_batches", ()),
    ("PlanOptions", ()),
    (
        "Plan",
        (
            *("in_shardings", "out_shardings", "named_shardings", "shardings", "jit", "explain", "diff", "report"),
            *("save", "load", "to_json", "from_json"),
        ),
    ),
    (
        "jit.planned_function.PlannedFunction",
        (
            *("compile", "as_jax_jit", "trace", "lower", "as_text", "cost_analysis", "memory_bytes", "memory_analysis"),
            *("input_shardings", "output_shardings"),
        ),
    ),
    ("jit.at_first_call.AutoshardedFunction", ("plan", "plan_for", "planned_for", "trace", "lower")),
    ("jit.plan_shardings.PlanShardings", ()),
    ("target", ()),
    ("targets.target.Target", ("mesh", "num_devices")),
    ("targets.target.TargetMesh", ()),
    ("targets.chips.Chip", ("from_file",)),
    ("plan_stages", ()),
    ("alpa.target_stages.TargetStages", ("latency_s",)),
    ("alpa.stage_table.StageCost", ()),
    ("CFPShardParallel", ()),
    ("CFPPipeshardParallel", ()),
    ("alpa.pipelines.ExtendedPipeshardParallel", ()),
    ("CFPOption", ()),
)
ERRORS = tuple(f"alpa_{name}.errors" for name in ("cfp", "cfp.search", "cfp.database", "cfp.targets", "on_jax"))
COMMANDS = ("", "bench", "plan", "explain", "diff", "profiles", "doctor")
PROFILE_COMMANDS = ("list", "show", "export", "import", "merge", "prune")
_COLUMNS, _LINE = "100", 100
_CONFIG: ConfigDict = {
    **default_config,
    "docstring_section_style": "list",
    "heading_level": 3,
    "inherited_members": False,
    "members_order": "source",
    "show_if_no_docstring": False,
    "show_root_full_path": False,
    "show_submodules": False,
    "summary": False,
}
_HEAD = """\
# Reference

<!-- Made by `make reference` from the docstrings and the commands' help. Do not edit. -->

`from alpa_cfp import ...` has [the names below](#python); [errors](#errors) are in the modules that are named there;
[commands](#commands) are those of `alpa-cfp`. A first program is in the [quickstart](quickstart.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, "## Python\n", *_objects(), "## Errors\n", *_errors(), "## Commands\n", *_commands()])


def _load() -> GriffeLoader:
    loader = GriffeLoader(docstring_parser=Parser.google, search_paths=[ROOT, ROOT / "patches"])
    for package in ("alpa_cfp", "alpa_on_jax"):
        loader.load(package)
    loader.resolve_aliases(external=False)
    return loader


def _objects() -> Iterator[str]:
    package = cast(Module, _load().modules_collection["alpa_cfp"])
    for name, members in OBJECTS:
        found = package[name]
        target = cast(Object, found.final_target if isinstance(found, Alias) else found)
        text = render_object_docs(target, {**_CONFIG, "members": list(members)})
        # Its links lead to anchors that only mkdocs makes.
        text = re.sub(r"\[([^][]*)\]\(#[^)]*\)", r"\1", text)
        text = re.sub(r"<code>(.*?)</code>", r"`\1`", text)
        text = re.sub(r"^(#+) `[\w.]*?(\w+\.\w+)`$", r"\1 `\2`", text, flags=re.MULTILINE)
        # Without a language: the code of a page is run by its test.
        yield re.sub(r"```python\n(.*)\n```", _signature, text).strip() + "\n"


def _signature(found: re.Match[str]) -> str:
    """The block of a signature, without internal parameters; a long one has a line for each parameter."""
    text = found[1]
    if "(" in text:
        name, _, inside = text.removesuffix(")").partition("(")
        parameters = [each for each in inside.split(", ") if not each.startswith("_")]
        text = f"{name}({', '.join(parameters)})"
        if len(text) > _LINE:
            text = "\n".join([f"{name}(", *(f"    {each}," for each in parameters), ")"])
    return f"```\n{text}\n```"


def _errors() -> Iterator[str]:
    collection = _load().modules_collection
    for name in ERRORS:
        module = cast(Module, collection[name])
        errors = [each for each in module.members.values() if each.name.endswith("Error")]
        targets = [each.final_target if isinstance(each, Alias) else each for each in errors]
        yield f"### `{name}`\n\n| error | is a | meaning |\n|---|---|---|"
        for each in (each for each in targets if isinstance(each, Class)):
            bases = ", ".join(f"`{base}`" for base in each.bases)
            said = each.docstring.value.partition("\n\n")[0] if each.docstring else ""
            yield f"| `{each.name}` | {bases} | {' '.join(said.split())} |"
        yield ""


def _commands() -> Iterator[str]:
    for command in COMMANDS:
        yield _help(command)
    for command in PROFILE_COMMANDS:
        yield _help(f"profiles {command}")


def _help(command: str) -> str:
    """The help of a command, as a block."""
    from alpa_cfp.cli.main import main

    words = command.split()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    name = " ".join(["alpa-cfp", *words])
    return f"### `{name}`\n\n```\n{output.getvalue().rstrip()}\n```\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
