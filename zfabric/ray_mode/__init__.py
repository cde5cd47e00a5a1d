"""The mode in which ``import ray`` is zfabric; ``zfabric.as_ray`` enters it, docs/as-ray.md describes it.

Ray's libraries (Tune, Train, Data, Serve, RLlib) come from the user's installation of ``ray``: its Python files are read, its binaries are
not. Programs that use Ray's core alone need no installation.

- ``mode``: enters the mode once per process; workers of the job before their first function
- ``finder``: where each module of ``ray`` comes from
- ``additions``: what refs, actors and functions have in this mode alone
- ``ids``: Ray's ids, which are objects
- ``absent``: names that exist and cannot be used
- ``command``: ``python -m zfabric.as_ray``, and its ``--check``
- ``ray``: one file for each module of Ray that zfabric replaces
- ``without_ray``: modules that exist only where no Ray is installed
"""
