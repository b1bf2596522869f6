"""The type stubs of the native module declare all of its contents, and nothing else."""

import ast
from pathlib import Path

import elastic_node
from elastic_node import _native


def members(body):
    return {item.name: item for item in body if isinstance(item, (ast.ClassDef, ast.FunctionDef))}


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_stubs_name_what_the_native_module_has():
    stubs = Path(elastic_node.__file__).with_name("_native.pyi")
    told = members(ast.parse(stubs.read_text()).body)
    assert set(told) == public(vars(_native))
    for name, item in told.items():
        if isinstance(item, ast.ClassDef) and not issubclass(getattr(_native, name), Exception):
            assert public(members(item.body)) == public(vars(getattr(_native, name))), name
