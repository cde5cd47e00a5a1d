"""Programs written for Ray, unchanged: after ``import zfabric.as_ray``, ``import ray`` is zfabric.

Ray's own libraries (Tune, Train, Data, Serve, RLlib) come from the user's installation of the distribution ``ray``, whose Python files are
read, and whose binaries are not. Without it, programs that use Ray's core alone run all the same. docs/as-ray.md is the page about this.

- ``mode``: enters the mode, once in each process; workers of the job enter it before they load its first function
- ``finder``: where each module of ``ray`` comes from
- ``installed``: the user's Ray
- ``additions``: what refs, actors and functions have in this mode alone
- ``ids``: Ray's ids, which are objects
- ``absent``: names that exist and cannot be used
- ``report``: ``python -m zfabric.as_ray --check``
- ``ray``: one file for each module of Ray that zfabric has itself or has a stand-in for
"""

from zfabric.as_ray.mode import enter

enter()
