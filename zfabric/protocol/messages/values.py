"""Objects: client <-> local scheduler."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows


class Put(NamedTuple):
    """client -> local scheduler. Values that exist: rows ``(object_id, value, contained refs, durable)``.

    Durable ones are answered with ``PutCommitted`` after their commit.
    """

    rows: Rows


class PutCommitted(NamedTuple):
    """local scheduler -> client. These durable values are committed; or, where ``error`` is not empty, could not be."""

    object_ids: Ids
    error: str


class OfferResults(NamedTuple):
    """client -> local scheduler, between ``Register`` and ``Ready``. Results I hold: rows ``(object_id, status, value, refs contained)``.

    They are adopted as accepted: a value that a program has seen is not made again.
    """

    rows: Rows


class Hold(NamedTuple):
    """client -> local scheduler. This process now has refs to these objects. Idempotent: holders are sets."""

    object_ids: Ids


class Release(NamedTuple):
    """client -> local scheduler. This process's last refs to these objects are gone. Idempotent."""

    object_ids: Ids


class Fetch(NamedTuple):
    """client -> local scheduler. Send me these objects (``Objects``) as soon as they exist."""

    object_ids: Ids


class Objects(NamedTuple):
    """local scheduler -> client. Values asked for: rows ``(object_id, status, value, refs contained)``. A place is a pin you now hold."""

    rows: Rows
