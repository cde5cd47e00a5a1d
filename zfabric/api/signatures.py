"""Signatures that travel with handles, as text: what a method takes is known wherever the handle is, and its class need not be there."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    import inspect

DEFAULT_LENGTH_MAX = 60
"""Longest default that is shown."""


class _Text:
    """A default, or an annotation, of which only the text is known."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def positional(parameters: list[inspect.Parameter]) -> tuple[int, float]:
    """Least and most positional arguments of a call without keywords; (1, 0) if it must have some keyword."""
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        return 1, 0
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    least = sum(1 for each in plain if each.default is each.empty)
    return least, float("inf") if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(plain)


def shown(signature: inspect.Signature, parameters: list[inspect.Parameter]) -> str:
    """The text for ``shape_of``, of those of its parameters that a caller sees. A default that is no code is shown as dots.

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
    plain = [each.replace(annotation=each.empty) for each in found]  # Some annotation is no code.
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def _code_of(value: Any) -> str:
    import ast

    try:
        text = repr(value)
        ast.parse(text, mode="eval")
    except Exception:  # whatever the user's __repr__ does, or makes
        return "..."
    return text if len(text) <= DEFAULT_LENGTH_MAX and "\n" not in text else "..."


@functools.lru_cache(maxsize=1024)
def shape_of(text: str) -> inspect.Signature | None:
    """The signature of which this is the text, with texts for its defaults and annotations. None if it is no code."""
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
    """What is wrong with these arguments for a signature of this text; empty if they fit."""
    shape = shape_of(text)
    try:
        if shape is not None:
            shape.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
