"""The user's Ray: where it is installed, and its version. Finding out runs nothing of it."""

from __future__ import annotations

import importlib.metadata
import os
from typing import NamedTuple

from zfabric.exceptions import ConfigError

TESTED = ("2.60",)
"""Versions whose libraries are tested on zfabric."""
NEWEST = "2.60.0"
"""``ray.__version__`` where no Ray is installed."""


class Installed(NamedTuple):
    """An installed distribution."""

    directory: str
    """The directory of the package ``ray``."""
    version: str


def find() -> Installed | None:
    """Return the Ray that this process would import, or None. Raises ConfigError if ``sys.path`` has two versions."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(name="ray"):
        directory = os.path.realpath(str(distribution.locate_file("ray")))
        if os.path.isdir(directory):
            found.setdefault(directory, distribution.version)
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{version} in {os.path.dirname(directory)}" for directory, version in found.items())
        raise ConfigError(f"two versions of Ray are installed ({listed}): remove one from sys.path (docs/as-ray.md)")
    return next((Installed(directory, version) for directory, version in found.items()), None)
