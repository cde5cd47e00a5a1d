"""The module of cloudpickle with its inside."""

from cloudpickle import cloudpickle as _module

globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})
