"""The names that Ray has in ``ray.actor``.

>>> import zfabric as ray
>>> @ray.remote
... class Leaver:
...     def leave(self):
...         ray.actor.exit_actor()
>>> isinstance(Leaver.remote(), ray.actor.ActorHandle)
True
"""

from zfabric.api.actor import ActorClass, ActorHandle, ActorMethod, exit_actor

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "exit_actor"]
