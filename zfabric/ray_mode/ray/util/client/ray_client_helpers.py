"""Servers of Ray's client, for tests of it. There is no client."""

from zfabric.ray_mode.absent import Absent, attributes

for _name in (
    "ray_start_client_server", "ray_start_client_server_for_address", "ray_start_client_server_pair",
    "ray_start_cluster_client_server_pair", "connect_to_client_or_not",
):  # fmt: skip
    globals()[_name] = Absent(
        f"ray.util.client.ray_client_helpers.{_name}", "a program joins a cluster by ray.init(address), from one of its machines"
    )

__getattr__ = attributes(__name__)
