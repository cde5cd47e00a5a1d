"""Flower's simulation: 48 clients on two CPUs train digits, and their server averages what they have learned.

Flower's server asks six clients at a time by default, and each question and each answer waits for the next tenth of a second. So a round
would take as long as these waits. Here the server asks all of them at once.
"""

import time

import numpy as np
import outcome
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import Server, ServerApp, ServerAppComponents, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

CLIENTS, ROUNDS, WARM = 48, 5, 1
accuracies: list[float] = []
ended: list[float] = []


def make_client(context):
    """A client with its own share of the digits."""
    mine = int(context.node_config["partition-id"])
    images, digits = load_digits(return_X_y=True)
    images, digits = images[mine::CLIENTS] / 16, digits[mine::CLIENTS]

    class Client(NumPyClient):
        def fit(self, parameters, config):
            model = LogisticRegression(max_iter=20, warm_start=True)
            model.classes_, model.coef_, model.intercept_ = np.arange(10), parameters[0].copy(), parameters[1].copy()
            model.fit(images, digits)
            return [model.coef_, model.intercept_], len(images), {}

        def evaluate(self, parameters, config):
            right = (images @ parameters[0].T + parameters[1]).argmax(1) == digits
            return float(1 - right.mean()), len(images), {"accuracy": float(right.mean())}

    return Client().to_client()


def average(reports):
    """The accuracy over all clients; called once for each round."""
    accuracies.append(sum(count * each["accuracy"] for count, each in reports) / sum(count for count, _ in reports))
    ended.append(time.perf_counter())
    assert len(reports) == CLIENTS
    return {"accuracy": accuracies[-1]}


def make_server(context):
    """A server that begins with zeros."""
    strategy = FedAvg(
        min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters([np.zeros((10, 64)), np.zeros(10)]),
        evaluate_metrics_aggregation_fn=average,
    )
    server = Server(client_manager=SimpleClientManager(), strategy=strategy)
    server.set_max_workers(CLIENTS)
    return ServerAppComponents(server=server, config=ServerConfig(num_rounds=ROUNDS))


run_simulation(
    server_app=ServerApp(server_fn=make_server),
    client_app=ClientApp(client_fn=make_client),
    num_supernodes=CLIENTS,
    backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
)
assert len(accuracies) == ROUNDS, accuracies
assert accuracies[-1] > 0.9, accuracies
outcome.report(ROUNDS - WARM, ended[-1] - ended[WARM - 1], "rounds/s")
