"""Programs written for Ray, unchanged: after ``import zfabric.as_ray``, ``import ray`` is zfabric. docs/as-ray.md is the page about this.

``python -m zfabric.as_ray program.py ARGS`` runs such a program, and ``--check`` says what of Ray is here.
"""

from zfabric.ray_mode.mode import enter

enter()

if __name__ == "__main__":
    import sys

    from zfabric.ray_mode.command import main

    main(sys.argv[1:])
