"""How Ray's dashboard makes its lists. zfabric makes its own (``ray.util.state``)."""

from zfabric.ray_mode.absent import Absent, attributes

StateAPIManager = Absent("ray.dashboard.state_aggregator.StateAPIManager", "ray.util.state lists what there is")

__getattr__ = attributes(__name__)
