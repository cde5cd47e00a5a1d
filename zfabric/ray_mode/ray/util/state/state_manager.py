"""How Ray's lists are made. zfabric makes its own (``ray.util.state``)."""

from zfabric.ray_mode.absent import Absent, attributes

StateDataSourceClient = Absent("ray.util.state.state_manager.StateDataSourceClient", "ray.util.state lists what there is")

__getattr__ = attributes(__name__)
