"""How pip builds the wheel (PEP 517): maturin's way, with the command `elastic-node` beside the package, so that installing
it puts the launcher on the path. `pyproject.toml` names this module."""

import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Iterator

import maturin
from maturin import (  # noqa: F401: hooks that stay as they are
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

HERE = Path(__file__).resolve().parent

#: What lies in its folder `scripts` becomes part of the wheel, and is installed as a command.
DATA = HERE / "elastic_node.data"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with command():
        return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with command():
        return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


@contextlib.contextmanager
def command() -> Iterator[None]:
    """Builds `elastic-node`, and has it where maturin looks for it meanwhile."""
    cargo = ["cargo", "rustc", "--release", "--locked", "--bin", "elastic-node"]
    told = ["--message-format", "json-render-diagnostics", "--", "-C", "strip=debuginfo"]
    built = subprocess.run([*cargo, *told], cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    (program,) = [message["executable"] for message in messages if message.get("executable")]
    try:
        (DATA / "scripts").mkdir(parents=True, exist_ok=True)
        shutil.copy2(program, DATA / "scripts")
        yield
    finally:
        shutil.rmtree(DATA, ignore_errors=True)
