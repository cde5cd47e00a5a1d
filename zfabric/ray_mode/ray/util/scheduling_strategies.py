"""``zfabric.util.scheduling_strategies``, under Ray's name."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)

SchedulingStrategyT = None | str | PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy | NodeLabelSchedulingStrategy
LabelMatchExpressionsT = dict[str, In | NotIn | Exists | DoesNotExist]

__getattr__ = attributes(__name__)
