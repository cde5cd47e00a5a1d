"""Serve has fifty replicas, and all of them answer at once: each request waits until there is one in every replica."""

import asyncio
import json
import time

import ray
from ray import serve

REPLICAS = 50


@ray.remote(num_cpus=0, max_concurrency=REPLICAS)
class Gathering:
    """Releases those who have come once there are ``REPLICAS``."""

    def __init__(self):
        self.came = set()
        self.all_there = asyncio.Event()

    async def come(self, replica):
        self.came.add(replica)
        if len(self.came) == REPLICAS:
            self.all_there.set()
        await self.all_there.wait()


@serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=1, ray_actor_options={"num_cpus": 0})
class Member:
    """Takes one request at a time."""

    def __init__(self, gathering):
        self.gathering = gathering

    async def __call__(self):
        own = serve.get_replica_context().replica_id.unique_id
        await self.gathering.come.remote(own)
        return own


def main():
    """Start the replicas, and send each a request."""
    ray.init(num_cpus=2)
    gathering = Gathering.remote()
    begun = time.perf_counter()
    handle = serve.run(Member.bind(gathering), name="members", route_prefix=None)
    ready = time.perf_counter() - begun
    answers = [each.result() for each in [handle.remote() for _ in range(REPLICAS)]]
    seconds = time.perf_counter() - begun
    assert len(set(answers)) == REPLICAS, answers
    serve.shutdown()
    ray.shutdown()
    print(json.dumps({"program": "serve_fifty", "seconds": seconds, "rate": REPLICAS / ready, "unit": "replicas/s"}))


main()
