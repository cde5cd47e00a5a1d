"""Signatures as text, which handles carry: they check arguments without importing the class."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    import inspect

DEFAULT_LENGTH_MAX = 60
"""Longest default that is shown, in characters."""


class _Text:
    """A default or an annotation that is available only as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def signature_as_called(called: Any) -> inspect.Signature:
    """Return the signature that a call has to fit: a wrapper's, not the wrapped function's (``functools.wraps``).

    Raises ValueError or TypeError for some callables written in C.
    """
    import inspect  # Programs without actors start sooner without it.

    try:
        return inspect.signature(called, follow_wrapped=False)
    except ValueError:  # Functions with a cache are written in C, and take what the inner function takes.
        return inspect.signature(called)


def fit(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError if these arguments do not fit."""
    bound = signature.bind(*args, **kwargs)
    for name, each in signature.parameters.items():
        if name not in bound.arguments and each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise TypeError(f"missing a required argument: {name!r}")  # Python 3.13.0 overlooks positional-only ones.


def positional(parameters: list[inspect.Parameter]) -> tuple[int, float]:
    """(least, most) positional arguments of a call without keywords; (1, 0) if some keyword is required."""
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        return 1, 0
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    least = sum(1 for each in plain if each.default is each.empty)
    return least, float("inf") if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(plain)


def shown(signature: inspect.Signature, parameters: list[inspect.Parameter]) -> str:
    """Format these parameters, for ``shape_of``. A default that is not code is shown as dots.

    >>> import inspect
    >>> def method(self, x, key=object(), *rest, flag=True): ...
    >>> signature = inspect.signature(method)
    >>> shown(signature, list(signature.parameters.values())[1:])
    '(x, key=..., *rest, flag=True)'
    """
    found = [each if each.default is each.empty else each.replace(default=_Text(_code_of(each.default))) for each in parameters]
    text = str(signature.replace(parameters=found))
    if shape_of(text) is not None:
        return text
    plain = [each.replace(annotation=each.empty) for each in found]  # Some annotations are not code.
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def _code_of(value: Any) -> str:
    import ast

    try:
        text = repr(value)
        ast.parse(text, mode="eval")
    except Exception:  # The user's __repr__ may raise, or return what is not code.
        return "..."
    return text if len(text) <= DEFAULT_LENGTH_MAX and "\n" not in text else "..."


@functools.lru_cache(maxsize=1024)
def shape_of(text: str) -> inspect.Signature | None:
    """Parse a signature, with texts as defaults and annotations. None if the text is not code."""
    import ast
    from inspect import Parameter, Signature

    try:
        tree = ast.parse(f"def shape{text}: pass").body[0]
    except SyntaxError:
        return None
    assert isinstance(tree, ast.FunctionDef)

    def told(node: ast.expr | None) -> Any:
        return Parameter.empty if node is None else _Text(ast.unparse(node))

    def parameter(each: ast.arg, kind: Any, default: ast.expr | None = None) -> Parameter:
        return Parameter(each.arg, kind, default=told(default), annotation=told(each.annotation))

    arguments = tree.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults]
    kinds = [Parameter.POSITIONAL_ONLY] * len(arguments.posonlyargs) + [Parameter.POSITIONAL_OR_KEYWORD] * len(arguments.args)
    found = [parameter(*each) for each in zip(plain, kinds, defaults, strict=True)]
    if arguments.vararg:
        found.append(parameter(arguments.vararg, Parameter.VAR_POSITIONAL))
    for each, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(parameter(each, Parameter.KEYWORD_ONLY, given))
    if arguments.kwarg:
        found.append(parameter(arguments.kwarg, Parameter.VAR_KEYWORD))
    return Signature(found, return_annotation=told(tree.returns))


def misfit(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Describe why these arguments do not fit the signature in ``text``; empty if they fit."""
    shape = shape_of(text)
    try:
        if shape is not None:
            fit(shape, args, kwargs)
    except TypeError as error:
        return str(error)
    return ""
