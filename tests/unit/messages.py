"""The messages of the packages, as their source says them: what an error or a warning can tell a user.

Takes the sources of `alpa_cfp` and `alpa_on_jax`; gives each text that an exception is made with, that is logged as a
warning or kept as a plan's caveat, or that a command writes to stderr, with `<>` in the place of each part that varies.
A constructor's own text counts where the constructor is, and what its callers fill in counts as well, if it has words
of its own: so a new message, or a new reason of an old one, is one more here. Nothing is imported.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("alpa_cfp", "patches/alpa_on_jax", "benchmarks/alpa_cfp_bench")
# Fewer words than these are the name of something within a message, and no message.
LEAST_WORDS = 3
_LOGGED = ("warning", "warn", "error", "exception", "critical", "log")
_LOGGERS = ("log", "logger", "warnings", "parser", "caveats")
# Their first argument names what is wrong; what is wrong with it is the last one.
_NAME_FIRST = ("ProfileValueError", "OptionError")
# Functions that give back a text which a message is made with, or None.
_GIVE_REASONS = ("_warning", "what_is_wrong", "_make_ready")


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A text that a user may see.

    Attributes:
        text: The text, with `<>` for what varies, in one line.
        owner: The class or function that words it (`PlanError.other_mesh`), or that is called with it.
        path: The source file, from the repository's root.
        is_wording: Whether `owner` words it, rather than being called with it.
    """

    text: str
    owner: str
    path: str
    is_wording: bool


@cache
def messages() -> list[Message]:
    """All of them, each text of a file once, ordered."""
    found = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            found.update(_Reader(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())).messages())
    return sorted(found)


def words_of(text: str) -> list[str]:
    """The words of a text that do not vary."""
    return re.findall(r"[A-Za-z][\w'-]+", text.replace("<>", " "))


def variable_parts(text: str) -> str:
    """A text of the page, whose variable parts are called `<mesh>` or `<...>`, with `<>` in their places."""
    return _collapsed(re.sub(r"<[^<>]*>", "<>", text))


def _collapsed(text: str) -> str:
    """`text` with one `<>` for several, with or without a dot between them."""
    return re.sub(r"<>(\.?<>)+", "<>", text)


class _Reader:
    """Finds the messages of one module."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self._path, self._tree = path, tree

    def messages(self) -> Iterator[Message]:
        yield from self._visit(self._tree, (), {})

    def _visit(self, node: ast.AST, scope: tuple[str, ...], texts: dict[str, list[ast.expr]]) -> Iterator[Message]:
        """The messages below `node`, which is in the classes and functions of `scope`."""
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            scope = (*scope, node.name)
        if isinstance(node, ast.FunctionDef):
            texts = texts | _assigned(node)
        if isinstance(node, ast.Call):
            yield from self._of_call(node, scope, texts)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and not _error_class(node.exc.func):
            yield from self._filled_in(node.exc, texts)
        if isinstance(node, ast.Return) and node.value is not None and scope and scope[-1].endswith(_GIVE_REASONS):
            yield from self._made([node.value], scope[-1], scope[-1].endswith("_warning"), texts)
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, scope, texts)

    def _of_call(self, call: ast.Call, scope: tuple[str, ...], texts: dict[str, list[ast.expr]]) -> Iterator[Message]:
        name = ast.unparse(call.func)
        *objects, last = name.split(".")
        if name == "super().__init__" and scope[0].endswith("Error"):
            yield from self._made(call.args[:1], scope[0], True, texts)
        elif name == "cls" and scope[0].endswith("Error"):
            yield from self._made(call.args[:1], ".".join(scope), True, texts)
        # `Ready` has what the process that measures says to the one that started it.
        elif _error_class(call.func) or name == "Ready":
            yield from self._filled_in(call, texts)
        elif objects and last in _LOGGED and objects[-1].lower().lstrip("_") in _LOGGERS:
            text = int(last == "log")  # behind the level
            yield from self._made(call.args[text : text + 1], name, False, texts)
        elif name == "print" and any(keyword.arg == "file" for keyword in call.keywords):
            yield from self._made(call.args, name, False, texts)

    def _filled_in(self, call: ast.Call, texts: dict[str, list[ast.expr]]) -> Iterator[Message]:
        owner = ast.unparse(call.func).removeprefix("errors.")
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return self._made(given[owner in _NAME_FIRST :], owner, False, texts)

    def _made(
        self, given: list[ast.expr], owner: str, is_wording: bool, texts: dict[str, list[ast.expr]]
    ) -> Iterator[Message]:
        for expression in given:
            for text in _texts(expression, texts):
                if len(words_of(text)) >= LEAST_WORDS:
                    yield Message(text, owner, self._path, is_wording)


def _error_class(function: ast.expr) -> str | None:
    """The class of errors that a call makes one of, by its name or by a class method."""
    return next((part for part in ast.unparse(function).split(".") if re.fullmatch(r"[A-Z]\w*Error", part)), None)


def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """What is assigned to each local name."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _texts(expression: ast.expr, texts: dict[str, list[ast.expr]]) -> list[str]:
    """The texts that an expression can be; none for what has no fixed part."""
    if isinstance(expression, ast.IfExp):
        return [*_texts(expression.body, texts), *_texts(expression.orelse, texts)]
    if isinstance(expression, ast.Name):
        others = {name: values for name, values in texts.items() if name != expression.id}
        return [text for value in texts.get(expression.id, ()) for text in _texts(value, others)]
    text = _template(expression, texts)
    if text is None:
        return []
    # What a name stands for that is one text or another.
    named = [part.value for part in ast.walk(expression) if isinstance(part, ast.FormattedValue)]
    either = [each for name in named if isinstance(name, ast.Name) for each in texts.get(name.id, ())]
    others = [text for each in either if isinstance(each, ast.IfExp) for text in _texts(each, {})]
    return [*others, " ".join(_collapsed(text).split())]


def _template(expression: ast.expr, texts: dict[str, list[ast.expr]]) -> str | None:
    if isinstance(expression, ast.Constant):
        # A text for `logging`, or one for `format`; no message has these for anything else.
        text = expression.value
        return _formatted(text) if isinstance(text, str) else None
    if isinstance(expression, ast.JoinedStr):
        return "".join(_part(each, texts) for each in expression.values)
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        return f"{_template(expression.left, texts) or '<>'}{_template(expression.right, texts) or '<>'}"
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return _template(expression.func.value, texts) if expression.func.attr == "format" else None
    return None


def _part(part: ast.expr, texts: dict[str, list[ast.expr]]) -> str:
    """A part of an f-string: its text, that of a local name which is a text, or `<>`."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else None
    if isinstance(value, ast.Name) and len(texts.get(value.id, ())) == 1:
        return _template(texts[value.id][0], {}) or "<>"
    return "<>"


def _formatted(text: str) -> str:
    return re.sub(r"%(\.\d+)?[sdgf]|\{\w*\}", "<>", text).replace("%%", "%")
