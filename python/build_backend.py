"""The backend by which pip builds the wheel (PEP 517): maturin's, with the command `elastic-node` beside the package,
so that installing it puts the launcher on the path. `pyproject.toml` names this module."""

import contextlib
import json
import os
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

#: The files in its folder `scripts` become part of the wheel, and are installed as commands. maturin looks at this
#: name.
DATA = HERE / "elastic_node._native.data"

#: cargo's profile. A release goes without debug information.
PROFILE = os.environ.get("ELASTIC_BUILD_PROFILE", "release")
STRIP = PROFILE != "dev"

#: A folder with `bin/` and `share/`, from which the program is taken instead of building it: `cargo xtask dist` has it built.
PROGRAM = os.environ.get("ELASTIC_BUILD_PROGRAM")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with command():
        return maturin.build_wheel(wheel_directory, settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    with command():
        return maturin.build_editable(wheel_directory, settings(config_settings), metadata_directory)


def settings(config_settings):
    """The arguments for maturin: ours, and those that the user of pip gives in `config_settings`, as maturin's
    documentation says."""
    ours = ["--locked", "--profile", PROFILE, *(["--strip"] if STRIP else ["--features", "workspace-features"])]
    return {"build-args": [*maturin.get_maturin_pep517_args(config_settings), *ours]}


@contextlib.contextmanager
def command() -> Iterator[None]:
    """Builds `elastic-node`, and has it where maturin looks for it meanwhile."""
    try:
        if PROGRAM:
            shutil.copytree(Path(PROGRAM, "bin"), DATA / "scripts")
            shutil.copytree(Path(PROGRAM, "share"), DATA / "data" / "share")
        else:
            (DATA / "scripts").mkdir(parents=True, exist_ok=True)
            shutil.copy2(build_program(), DATA / "scripts")
        yield
    finally:
        shutil.rmtree(DATA, ignore_errors=True)


def build_program():
    """Builds `elastic-node`, and returns its path."""
    if shutil.which("cargo") is None:
        raise SystemExit("Elastic Node is built with Rust 1.90 or later: see https://rustup.rs")
    if STRIP:
        cargo = ["cargo", "rustc", "--package", "elastic-node-cli"]
    else:
        # With the features of the whole workspace, so that code that its tests have built is not built again.
        cargo = ["cargo", "build", "--workspace"]
    cargo += ["--bin", "elastic-node", "--locked", "--profile", PROFILE, "--message-format", "json-render-diagnostics"]
    cargo += ["--", "-C", "strip=debuginfo"] if STRIP else []
    built = subprocess.run(cargo, cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    (program,) = [message["executable"] for message in messages if message.get("executable")]
    return program
