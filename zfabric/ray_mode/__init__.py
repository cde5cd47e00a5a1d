"""The mode in which ``import ray`` is zfabric (``zfabric.as_ray`` enters it; docs/as-ray.md is the page about it).

Ray's own libraries (Tune, Train, Data, Serve, RLlib) come from the user's installation of the distribution ``ray``, whose Python files are
read, and whose binaries are not. Without it, programs that use Ray's core alone run all the same.

- ``mode``: enters the mode, once in each process; workers of the job enter it before they load its first function
- ``finder``: where each module of ``ray`` comes from
- ``installed``: the user's Ray
- ``additions``: what refs, actors and functions have in this mode alone
- ``ids``: Ray's ids, which are objects
- ``absent``: names that exist and cannot be used
- ``command``, ``report``: ``python -m zfabric.as_ray``, and its ``--check``
- ``ray``: one file for each module of Ray that zfabric has itself or has a stand-in for
- ``without_ray``: modules that exist only where no Ray is installed
"""
