"""A model server: requests come one by one, the model answers in batches, and every answer is used as soon as it is there.

    zfabric submit docs/examples/model_server.py --requests 2000

The server is an actor whose methods are coroutines, so many requests wait in it at the same time. The first of a batch starts a clock; when
it has run out, or the batch is full, one call of the model answers all of them.
"""

import argparse
import asyncio

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


def main() -> None:
    """Read the command line, ask about images, and print how it goes with the answers that are there."""
    parser = argparse.ArgumentParser(description="Serve a model that works in batches.")
    parser.add_argument("--requests", type=int, default=2000, help="images to ask about (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch at most (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=0.005, help="seconds a request waits for others (default: %(default)s)")
    options = parser.parse_args()
    if options.requests < 1 or options.batch < 1:
        parser.error("it takes at least one request, and room for one in a batch")

    zf.init(ignore_reinit_error=True)
    images, labels = load_digits(return_X_y=True)
    server = Server.remote(options.batch, options.patience)
    asked = np.random.default_rng(0).integers(len(labels), size=options.requests)
    requests = {server.recognise.remote(images[index]): int(labels[index]) for index in asked}
    right = 0
    for number, ref in enumerate(zf.as_completed(list(requests)), start=1):
        right += zf.get(ref) == requests[ref]
        if number % max(1, options.requests // 5) == 0:
            print(f"{number:>6,} answers  {right / number:.1%} right", flush=True)
    sizes = zf.get(server.batches.remote())
    print(f"{options.requests:,} requests in {len(sizes):,} batches, the largest of {max(sizes)}")


if __name__ == "__main__":
    main()
