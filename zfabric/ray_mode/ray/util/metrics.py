"""A program's own metrics (``zfabric.util.metrics``)."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.metrics import Counter, Gauge, Histogram, Metric

__getattr__ = attributes(__name__)
