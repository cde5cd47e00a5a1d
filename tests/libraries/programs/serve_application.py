"""Serve: deployments that call each other, batches, HTTP with JSON and with a stream, streams by handles, a new version."""

import concurrent.futures
import json
import socket
import time
import urllib.request

import outcome
import ray
from ray import serve
from starlette.responses import StreamingResponse

REQUESTS = 600
AT_ONCE = 60


@serve.deployment(num_replicas=2, max_ongoing_requests=100)
class Doubler:
    """Doubles numbers, many at a time."""

    def __init__(self):
        self.largest = 0

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.01)
    async def double(self, numbers):
        self.largest = max(self.largest, len(numbers))
        return [2 * number for number in numbers]

    async def __call__(self, number):
        return await self.double(number)

    def largest_batch(self):
        return self.largest


@serve.deployment(max_ongoing_requests=100, user_config={"offset": 1})
class Front:
    """Calls the other deployment, answers HTTP, and streams."""

    def __init__(self, doubler):
        self.doubler = doubler

    def reconfigure(self, config):
        self.offset = config["offset"]

    async def add(self, number):
        return self.offset + await self.doubler.remote(number)

    async def count(self, until):
        for number in range(until):
            yield number

    async def __call__(self, request):
        if request.url.path.endswith("/stream"):
            return StreamingResponse((f"{number}\n" async for number in self.count(5)), media_type="text/plain")
        if request.method == "POST":
            return {"sum": sum(await request.json())}
        return {"answer": await self.add(int(request.query_params["number"]))}


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    """Check handles and HTTP, and measure requests by both."""
    ray.init(num_cpus=4)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    handle = serve.run(Front.bind(Doubler.bind()), name="application", route_prefix="/app")
    assert [each.result() for each in [handle.add.remote(number) for number in range(40)]] == [2 * number + 1 for number in range(40)]
    assert list(handle.options(stream=True).count.remote(4)) == [0, 1, 2, 3]
    doubler = serve.get_deployment_handle("Doubler", "application")
    batches = [each.result() for each in [doubler.largest_batch.remote() for _ in range(8)]]
    assert 1 < max(batches) <= 16, batches

    url = f"http://127.0.0.1:{port}/app"
    with urllib.request.urlopen(f"{url}?number=20", timeout=30) as answer:
        assert json.load(answer) == {"answer": 41}
    with urllib.request.urlopen(urllib.request.Request(url, data=b"[1, 2, 3]", method="POST"), timeout=30) as answer:
        assert json.load(answer) == {"sum": 6}
    with urllib.request.urlopen(f"{url}/stream", timeout=30) as answer:
        assert answer.read().split() == [b"0", b"1", b"2", b"3", b"4"]
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/nothing", timeout=30)
    except urllib.error.HTTPError as error:
        assert error.code == 404
    else:
        raise AssertionError("a route that does not exist has answered")

    def ask(number):
        with urllib.request.urlopen(f"{url}?number={number}", timeout=30) as answer:
            return json.load(answer)["answer"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(100))) == [2 * number + 1 for number in range(100)]
        begun = time.perf_counter()
        assert list(pool.map(ask, range(REQUESTS))) == [2 * number + 1 for number in range(REQUESTS)]
    answers = []
    for first in range(0, REQUESTS, AT_ONCE):  # Fewer than a replica takes: what it rejects, Serve's router asks for twice a second.
        answers += [each.result() for each in [handle.add.remote(number) for number in range(first, first + AT_ONCE)]]
    taken = time.perf_counter() - begun
    assert answers == [2 * number + 1 for number in range(REQUESTS)]

    handle = serve.run(Front.options(user_config={"offset": 100}).bind(Doubler.bind()), name="application", route_prefix="/app")
    assert handle.add.remote(1).result() == 102
    status = serve.status().applications["application"]
    assert status.status == "RUNNING" and len(status.deployments) == 2, status
    serve.delete("application")
    assert "application" not in serve.status().applications
    serve.shutdown()
    ray.shutdown()
    outcome.report(2 * REQUESTS, taken, "requests/s")


main()
