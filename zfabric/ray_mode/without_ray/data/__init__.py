"""``ray.data`` without an installed Ray: Modin imports it to exchange frames with Ray Data."""

from zfabric.ray_mode.absent import Absent, attributes

WHY = "no Ray is installed here: pip install 'ray[data]'"
from_pandas_refs = Absent("ray.data.from_pandas_refs", WHY)

__getattr__ = attributes(__name__, WHY)
