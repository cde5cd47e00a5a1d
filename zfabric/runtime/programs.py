"""What this program is called: its script and its command."""

from __future__ import annotations

import os
import shlex
import sys

from zfabric.protocol.programs import Program

JOB_VARIABLE = "ZFABRIC_JOB_ID"
"""The id of a program's job (``zfabric submit --detach``)."""


def this_program() -> Program:
    """What this process runs, as far as it shows."""
    arguments = [text for text in getattr(sys, "orig_argv", []) if isinstance(text, str)]
    return Program(os.environ.get(JOB_VARIABLE, ""), _script(), shlex.join(arguments))


def _script() -> str:
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    if first in ("", "-c", "-m", "-"):
        return {"-c": "python -c"}.get(first, "python")
    name = os.path.basename(first)
    if name in ("__main__.py", "__init__.py"):  # python -m package
        return os.path.basename(os.path.dirname(os.path.abspath(first)))
    return "notebook" if name == "ipykernel_launcher.py" else name
