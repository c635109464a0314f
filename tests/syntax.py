"""Syntax trees for the tests that read the sources: parsed once, walked once for all that look at the same tree."""

import ast
import functools
from collections.abc import Iterator


@functools.lru_cache(maxsize=1)
def parsed(text: str) -> ast.Module:
    """Once for all rules: none of them changes a tree. All trees together would take half a gigabyte."""
    return ast.parse(text)


@functools.lru_cache(maxsize=1)
def every(tree: ast.Module) -> list[ast.AST]:
    """Every node. Where statements are enough, walking those takes a tenth of the time."""
    return list(ast.walk(tree))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements and `except` clauses, also within others; classes and functions are among them."""
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                ahead += inner


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in statements(tree) if isinstance(node, ast.ClassDef))
