"""Environments of tasks."""

from typing import Any

from zfabric.ray_mode.absent import submodules


class RuntimeEnvConfig(dict[str, Any]):
    """How Ray builds environments: without effect."""

    def __init__(self, setup_timeout_seconds: int = 600, eager_install: bool = True, log_files: list[str] | None = None) -> None:
        super().__init__(setup_timeout_seconds=setup_timeout_seconds, eager_install=eager_install, log_files=log_files)


class RuntimeEnv(dict[str, Any]):
    """A ``runtime_env``: a dict of its fields. It is checked where it is used."""

    def __init__(self, *, _validate: bool = True, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dict."""
        return dict(self)


__getattr__ = submodules(__name__)
