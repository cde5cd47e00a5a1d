"""Actors."""

from typing import Generic, TypeVar

from zfabric.actor import ActorClass, ActorHandle, ActorMethod, exit_actor
from zfabric.api.methods import method
from zfabric.ray_mode.absent import attributes

T = TypeVar("T")


class ActorProxy(Generic[T]):
    """The type that Ray's annotations give handles."""


class ActorClassInheritanceException(TypeError):
    """A remote class was derived from. zfabric raises TypeError."""


__getattr__ = attributes(__name__)
