"""A trial of Tune, and a replica of Serve, that ask for more memory than any node has: the program waits, and reads why, with sizes."""

import sys
import tempfile

import ray
from ray import serve, tune

ASKED = 10 * 2**40


@serve.deployment(ray_actor_options={"memory": ASKED})
class Replica:
    """Is never made."""

    def __call__(self):
        return "made"


ray.init(num_cpus=2)
if sys.argv[1] == "tune":
    tune.Tuner(
        tune.with_resources(lambda config: None, {"cpu": 1, "memory": ASKED}),
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
    ).fit()
else:
    serve.run(Replica.bind(), route_prefix=None)
