"""Asynchronous SGD: actors that hold data and compute gradients, around one that holds the weights.

    zfabric submit docs/examples/parameter_server.py --workers 4 --updates 2000

Each worker works with the weights that its last gradient led to, whatever the others did meanwhile. The driver only says who is next:
weights and gradients are refs to it, and travel from actor to actor.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import zfabric as zf

HIDDEN = 64
BATCH = 64


def digits(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images of handwritten digits and what they show: four fifths to learn from, the rest to be asked about."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    cut = len(labels) * 4 // 5
    chosen = order[:cut] if train else order[cut:]
    return images[chosen] / 16.0, labels[chosen]


def forward(weights: list[np.ndarray], images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the hidden layer does, and how likely each image is to be each digit."""
    first, bias, second, offset = weights
    hidden = np.maximum(images @ first + bias, 0)
    scores = hidden @ second + offset
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


@zf.remote
class ParameterServer:
    """Holds the weights; each gradient moves them a little."""

    def __init__(self, rate: float) -> None:
        random = np.random.default_rng(0)
        self.rate = rate
        self.weights = [random.normal(0, 0.1, (64, HIDDEN)), np.zeros(HIDDEN), random.normal(0, 0.1, (HIDDEN, 10)), np.zeros(10)]
        self.images, self.labels = digits(train=False)

    def current(self) -> list[np.ndarray]:
        """The weights as they are now."""
        return self.weights

    def apply(self, gradient: list[np.ndarray]) -> list[np.ndarray]:
        """The weights after a step against this gradient."""
        self.weights = [weight - self.rate * part for weight, part in zip(self.weights, gradient, strict=True)]
        return self.weights

    def accuracy(self) -> float:
        """How many of the images that nobody learns from are recognised, from 0 to 1."""
        _, likely = forward(self.weights, self.images)
        return float(np.mean(likely.argmax(axis=1) == self.labels))


@zf.remote
class Worker:
    """Has a share of the data, and finds the gradient at given weights for some of it."""

    def __init__(self, number: int, workers: int) -> None:
        images, labels = digits(train=True)
        self.images, self.labels = images[number::workers], labels[number::workers]
        self.random = np.random.default_rng(number)

    def gradient(self, weights: list[np.ndarray]) -> list[np.ndarray]:
        """The gradient of the loss over a random batch."""
        batch = self.random.integers(len(self.labels), size=BATCH)
        images = self.images[batch]
        hidden, error = forward(weights, images)
        error[np.arange(BATCH), self.labels[batch]] -= 1
        error /= BATCH
        back = (error @ weights[2].T) * (hidden > 0)
        return [images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def main() -> None:
    """Read the command line, and keep every worker busy until there were enough updates."""
    parser = argparse.ArgumentParser(description="Learn to read digits by asynchronous SGD.")
    parser.add_argument("--workers", type=int, default=2, help="actors that compute gradients (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=2000, help="steps of the weights (default: %(default)s)")
    # Gradients come late, by as many steps as there are other workers: longer steps, and the weights jump about when they are good.
    parser.add_argument("--rate", type=float, default=0.15, help="how far each step goes (default: %(default)s)")
    options = parser.parse_args()
    if options.workers < 1 or options.updates < 1:
        parser.error("it takes at least one worker and one update")

    zf.init(ignore_reinit_error=True)
    server = ParameterServer.remote(options.rate)
    workers = [Worker.remote(number, options.workers) for number in range(options.workers)]
    busy = {worker.gradient.remote(server.current.remote()): worker for worker in workers}
    for update in range(1, options.updates + 1):
        (done,), _ = zf.wait(list(busy), num_returns=1)
        worker = busy.pop(done)
        busy[worker.gradient.remote(server.apply.remote(done))] = worker  # the gradient goes in, the weights go on: both are refs
        if update % max(1, options.updates // 10) == 0:
            print(f"{update:>6,} updates  {zf.get(server.accuracy.remote()):.1%} of the digits recognised", flush=True)


if __name__ == "__main__":
    main()
