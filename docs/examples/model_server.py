"""A model server: many clients ask at the same time, the model answers in batches, and every client has its answers as a stream.

    zfabric submit docs/examples/model_server.py --clients 8 --requests 500

The server is an actor whose methods are coroutines, so many requests wait in it at the same time, whoever asks. The first of a batch
starts a clock; when it has run out, or the batch is full, one call of the model answers all of them.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import zfabric as zf


@zf.remote
class Server:
    """Recognises digits, several at a time."""

    def __init__(self, batch: int, patience: float) -> None:
        images, labels = load_digits(return_X_y=True)
        self.model = LogisticRegression(max_iter=300).fit(images[::2], labels[::2])
        self.batch = batch
        self.patience = patience
        self.waiting: list[tuple[np.ndarray, asyncio.Future[int]]] = []
        self.sizes: list[int] = []

    async def recognise(self, image: np.ndarray) -> int:
        """The digit that an image shows."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        self.waiting.append((image, answer))
        if len(self.waiting) == self.batch:
            self.answer()
        elif len(self.waiting) == 1:
            loop.call_later(self.patience, self.answer)
        return await answer

    async def stream(self, images: np.ndarray) -> AsyncIterator[tuple[int, int]]:
        """For each image, as soon as it is recognised: which it is of them, and the digit."""

        async def numbered(number: int) -> tuple[int, int]:
            return number, await self.recognise(images[number])

        for answer in asyncio.as_completed([numbered(number) for number in range(len(images))]):
            yield await answer

    def answer(self) -> None:
        """Ask the model about all that wait."""
        waiting, self.waiting = self.waiting, []
        if waiting:  # a clock may run out after its batch was full
            self.sizes.append(len(waiting))
            found = self.model.predict(np.array([image for image, _ in waiting]))
            for (_, answer), digit in zip(waiting, found, strict=True):
                if not answer.done():
                    answer.set_result(int(digit))

    async def batches(self) -> list[int]:
        """The sizes of the batches so far."""
        return self.sizes


@zf.remote
def client(server: zf.ActorHandle, number: int, requests: int) -> tuple[int, float, float]:
    """Ask about images: how many answers were right, and after how many seconds the first and the last were here."""
    images, labels = load_digits(return_X_y=True)
    asked = np.random.default_rng(number).integers(len(labels), size=requests)
    began, came, right = time.monotonic(), [], 0
    for ref in server.stream.remote(images[asked]):
        which, digit = zf.get(ref)
        came.append(time.monotonic() - began)
        right += int(digit == labels[asked[which]])
    return right, came[0], came[-1]


def main() -> None:
    """Read the command line, let the clients ask, and print what each has got when it has it all."""
    parser = argparse.ArgumentParser(description="Serve a model that works in batches.")
    parser.add_argument("--clients", type=int, default=4, help="tasks that ask at the same time (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=500, help="images that each asks about (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch at most (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=0.005, help="seconds a request waits for others (default: %(default)s)")
    options = parser.parse_args()
    if min(options.clients, options.requests, options.batch) < 1 or options.patience < 0:
        parser.error("it takes at least one client with one request, room for one in a batch, and a patience from 0")

    zf.init(ignore_reinit_error=True)
    server = Server.remote(options.batch, options.patience)
    zf.get(server.batches.remote())  # The model has learnt: clients do not wait for that.
    clients = {client.remote(server, number, options.requests): number for number in range(options.clients)}
    for ref in zf.as_completed(list(clients)):
        right, first, last = zf.get(ref)
        when = f"answers came from {1e3 * first:.0f} to {1e3 * last:.0f} ms after it had asked"
        print(f"client {clients[ref]}: {right / options.requests:.1%} right, {when}", flush=True)
    sizes = zf.get(server.batches.remote())
    print(f"{options.clients * options.requests:,} requests in {len(sizes):,} batches, the largest of {max(sizes)}")


if __name__ == "__main__":
    main()
