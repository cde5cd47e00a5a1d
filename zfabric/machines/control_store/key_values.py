"""The cluster's key-value store: rows of one table in the head's control store.

All state is in rows, read as they will be once committed: a rollback or restart needs no code here. The first byte of a row's key tells its
kind:

``k`` namespace key         ``(key, version, size, job)``: a key; ``job`` is empty if the key outlives its job
``v`` version place         a part of a value; each put value has a version of its own
``h`` job                   the home of a job that has one of the rows below
``j`` job ``k`` …           a key that ends with the job
``j`` job ``u`` version     the size of a value that is being uploaded, without a key yet
``j`` job ``a`` process     ``(oldest, ((number, payload), …))``: answers to requests that the process may repeat

A long key's row has its first bytes and a digest: keys are found by prefix. A row of "meta" counts the bytes of keys and values. **A job's
end** deletes its committed rows in bounded transactions, one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from zfabric.config import Config
from zfabric.machines.common.tables import Reader, pack_row, unpack_row
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Row, Rows
from zfabric.protocol.messages.key_values import PART_BYTES

TABLE = "kv"
BYTES_KEY = b"kv bytes"
"""Counted against ``kv_bytes``."""
HEAD_BYTES = 256
"""Bytes of a key that order and find its row; a longer one has a digest behind them."""
DIGEST_BYTES = 16
KEY_COSTS = 256
"""Bytes counted per key and upload for their rows."""
ROWS_MOST = 4096
"""Rows per step of a deletion: about 1 ms."""
ANSWERS_MOST = 1000
"""Most retained answers of a process: one per waiting thread."""
PAGE_KEYS = 1000
"""Most keys per answer to ``ListKeys``: at most 4 MiB."""
PAGE = 256

Change = m.PutKey | m.PutPart | m.DropUpload | m.DeleteKeys
Question = m.GetKey | m.ListKeys
Write = Callable[[float, str, bytes, bytes | None], None]
"""Puts or deletes a row with the gathering transaction: (now, table, key, value)."""


class _Entry(NamedTuple):
    key: bytes
    version: bytes
    size: int
    job: bytes


class _Refused(Exception):
    """A request that changes nothing: (error's name, text)."""


class KeyValues:
    """The key-value store over rows.

    ``current`` reads a row as it will be, ``pending`` lists uncommitted keys, ``write`` gathers a row.
    """

    def __init__(
        self,
        config: Config,
        reader: Reader,
        current: Callable[[str, bytes], bytes | None],
        pending: Callable[[str], Iterable[bytes]],
        write: Write,
    ) -> None:
        self._config = config
        self._reader = reader
        self._current = current
        self._pending = pending
        self._write = write
        self.ending: dict[bytes, list[tuple[Address, int]]] = {}
        """Ended jobs -> (who, token) that wait for the deletion."""

    # -- changes --

    def change(self, now: float, message: Change) -> m.KeyAnswer:
        """Gather changes. The answer is for after their commit."""
        job, home, process, number, _ = message.writer
        try:
            if self._has_ended(job):
                raise _Refused("JobEndedError", "the job has ended, and puts and deletes no keys any more")
            if isinstance(message, m.PutPart):
                self._put_part(now, message)
                payload: Row = ()
            elif isinstance(message, m.DropUpload):
                self._drop_upload(now, job, _version(process, number))
                payload = ()
            else:
                payload = self._once(now, message, _of_job(job) + b"a" + process)
        except _Refused as refused:
            return m.KeyAnswer(message.token, (), *refused.args)
        if self._get(b"h" + job) != home:
            self._put(now, b"h" + job, home)
        return m.KeyAnswer(message.token, payload, "", "")

    def _once(self, now: float, message: m.PutKey | m.DeleteKeys, row_key: bytes) -> Row:
        """Carry out a request once: its answer is durable with its change."""
        _, _, _, number, oldest = message.writer
        row = self._get(row_key)
        before: int
        answers: Rows
        before, answers = unpack_row(row) if row is not None else (0, ())
        for answered, answer in answers:
            if answered == number:
                return tuple(answer)
        if number < before:
            raise _Refused("FabricError", "its process does not wait for this request any more")
        left = [each for each in answers if each[0] >= oldest]
        if len(left) >= ANSWERS_MOST:
            raise _Refused("FabricError", f"a process changes keys in at most {ANSWERS_MOST} threads at a time")
        payload = self._put_key(now, message) if isinstance(message, m.PutKey) else self._delete_keys(now, message)
        self._put(now, row_key, pack_row((max(before, oldest), (*left, (number, payload)))))
        return payload

    def _put_key(self, now: float, message: m.PutKey) -> Row:
        job, _, process, number, _ = message.writer
        row_key = row_key_of(message.namespace, message.key)
        version, size = _version(process, message.upload or number), len(message.value)
        uploaded = 0
        if message.upload:
            size = self._upload_size(job, version)
            uploaded = size + KEY_COSTS
        old = self._entry(row_key)
        if old is not None and not message.overwrite:
            if message.upload:
                self._drop_upload(now, job, version)
            return (False, True)
        entry = _Entry(message.key, version, size, b"" if message.keep else job)
        self._count(now, _costs(row_key, entry) - uploaded - (_costs(row_key, old) if old is not None else 0))
        if old is not None:
            self._remove(now, row_key, old)
        if message.upload:
            self._delete(now, _of_job(job) + b"u" + version)
        elif size:
            self._put(now, b"v" + version + _place(0), message.value)
        self._put(now, row_key, pack_row(entry))
        if entry.job:
            self._put(now, _of_job(job) + row_key, b"")
        return (True, old is not None)

    def _put_part(self, now: float, message: m.PutPart) -> None:
        """Gather a part, which may come twice. The first reserves the bytes of all."""
        job, _, process, number, _ = message.writer
        version = _version(process, number)
        row_key = _of_job(job) + b"u" + version
        if self._get(row_key) is None:
            self._count(now, message.size + KEY_COSTS)
            self._put(now, row_key, pack_row(message.size))
        elif self._upload_size(job, version) != message.size:
            raise _Refused("FabricError", "the parts of an upload are of one value")
        self._put(now, b"v" + version + _place(message.place), message.part)

    def _upload_size(self, job: bytes, version: bytes) -> int:
        row = self._get(_of_job(job) + b"u" + version)
        if row is None:
            raise _Refused("FabricError", "the parts of this value are not here (any more)")
        size: int = unpack_row(row)
        return size

    def _drop_upload(self, now: float, job: bytes, version: bytes) -> None:
        row_key = _of_job(job) + b"u" + version
        row = self._get(row_key)
        if row is not None:
            size = unpack_row(row)
            self._delete(now, row_key)
            self._delete_parts(now, version, size)
            self._count(now, -size - KEY_COSTS)

    def _delete_keys(self, now: float, message: m.DeleteKeys) -> Row:
        row_key = row_key_of(message.namespace, message.key)
        if not message.by_prefix:
            entry = self._entry(row_key)
            if entry is not None:
                self._delete_key(now, row_key, entry)
            return (int(entry is not None), False)
        deleted = rows = 0
        for row_key, entry in self._found(message.namespace, message.key):
            if rows > ROWS_MOST:
                return (deleted, True)
            self._delete_key(now, row_key, entry)
            deleted += 1
            rows += 2 + _parts(entry.size)
        return (deleted, False)

    def _found(self, namespace: str, prefix: bytes) -> Iterator[tuple[bytes, _Entry]]:
        """Keys that begin with ``prefix``, as they will be, unordered. They may be deleted meanwhile."""
        start = _prefix_of(namespace, prefix)
        pending = {each for each in self._pending(TABLE) if each.startswith(start)}
        for row_key in (*pending, *(key for key, _ in self._committed(start) if key not in pending)):
            entry = self._entry(row_key)
            if entry is not None and entry.key.startswith(prefix):
                yield row_key, entry

    # -- questions --

    def answer(self, question: Question) -> m.KeyAnswer:
        """Answer from committed rows."""
        payload = self._value(question) if isinstance(question, m.GetKey) else self._list(question)
        return m.KeyAnswer(question.token, payload, "", "")

    def _value(self, question: m.GetKey) -> Row:
        row = self._reader.get(TABLE, row_key_of(question.namespace, question.key))
        entry = _Entry(*unpack_row(row)) if row is not None else None
        if entry is None or question.version not in (b"", entry.version):
            return ()
        part = self._reader.get(TABLE, b"v" + entry.version + _place(question.place)) if question.place >= 0 else None
        return (entry.version, entry.size, part or b"")

    def _list(self, question: m.ListKeys) -> Row:
        after = row_key_of(question.namespace, question.after) if question.after else b""
        keys: list[bytes] = []
        for _, row in self._committed(_prefix_of(question.namespace, question.prefix), after):
            key = _Entry(*unpack_row(row)).key
            if key.startswith(question.prefix):
                if len(keys) == PAGE_KEYS:
                    return (tuple(keys), True)
                keys.append(key)
        return (tuple(keys), False)

    def _committed(self, prefix: bytes, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        while page := self._reader.scan(TABLE, prefix, after, PAGE):
            yield from page
            after = page[-1][0]

    # -- ends of jobs --

    def end(self, job: bytes, who: Address, token: int) -> None:
        """Delete a job's rows; ``who`` waits."""
        self.ending.setdefault(job, []).append((who, token))

    def take_waiting(self) -> list[tuple[Address, int]]:
        """Take those who wait: the store cannot write. Rows are deleted later."""
        waiting = [each for waiters in self.ending.values() for each in waiters]
        self.ending = {job: [] for job in self.ending}
        return waiting

    def go_on_ending(self, now: float) -> list[tuple[Address, int]]:
        """Gather the next deletions of ended jobs, unless one is under way; return who waited."""
        gone = []
        rows = 0
        for job in list(self.ending):
            if self._reader.get(TABLE, b"h" + job) is None:
                gone += self.ending.pop(job)
                continue
            for row_key, row in self._committed(_of_job(job)):
                if rows > ROWS_MOST:
                    return gone
                rows += self._end_row(now, job, row_key, row)
            self._delete(now, b"h" + job)
        return gone

    def _end_row(self, now: float, job: bytes, row_key: bytes, row: bytes) -> int:
        """Delete a job's row and what belongs to it; return about how many."""
        rest = row_key[len(_of_job(job)) :]
        if rest[:1] == b"k":
            entry = self._entry(rest)
            if entry is not None:
                self._delete_key(now, rest, entry)
                return 2 + _parts(entry.size)
        elif rest[:1] == b"u":
            self._drop_upload(now, job, rest[1:])
            return 1 + _parts(unpack_row(row))
        self._delete(now, row_key)
        return 1

    # -- rows --

    def _get(self, key: bytes) -> bytes | None:
        return self._current(TABLE, key)

    def _put(self, now: float, key: bytes, value: bytes) -> None:
        self._write(now, TABLE, key, value)

    def _delete(self, now: float, key: bytes) -> None:
        self._write(now, TABLE, key, None)

    def _entry(self, row_key: bytes) -> _Entry | None:
        row = self._get(row_key)
        return _Entry(*unpack_row(row)) if row is not None else None

    def _delete_key(self, now: float, row_key: bytes, entry: _Entry) -> None:
        self._remove(now, row_key, entry)
        self._delete(now, row_key)
        self._count(now, -_costs(row_key, entry))

    def _remove(self, now: float, row_key: bytes, entry: _Entry) -> None:
        self._delete_parts(now, entry.version, entry.size)
        if entry.job:
            self._delete(now, _of_job(entry.job) + row_key)

    def _delete_parts(self, now: float, version: bytes, size: int) -> None:
        for place in range(_parts(size)):
            self._delete(now, b"v" + version + _place(place))

    def _count(self, now: float, more: int) -> None:
        """Count bytes put or (negative) deleted. Raises _Refused."""
        row = self._current("meta", BYTES_KEY)
        total = (unpack_row(row) if row is not None else 0) + more
        if more > 0 and total > self._config.kv_bytes:
            text = f"the cluster's key-value store has {total - more:,} bytes, and no room for {more:,} more (kv_bytes of the head)"
            raise _Refused("KeyValueStoreFullError", f"{text}: {self._config.kv_bytes:,}; delete keys, or set it higher")
        self._write(now, "meta", BYTES_KEY, pack_row(total))

    def _has_ended(self, job: bytes) -> bool:
        row = self._current("job", job)
        return row is not None and unpack_row(row)["status"] == "ended"


def row_key_of(namespace: str, key: bytes) -> bytes:
    """Return the key of a key's row."""
    digest = hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest() if len(key) > HEAD_BYTES else b""
    return _prefix_of(namespace, key) + digest


def _prefix_of(namespace: str, prefix: bytes) -> bytes:
    """How keys of rows with this prefix begin, and perhaps others."""
    name = namespace.encode("utf-8", "surrogatepass")
    return b"k" + bytes((len(name),)) + name + prefix[:HEAD_BYTES]


def _of_job(job: bytes) -> bytes:
    return b"j" + job


def _version(process: bytes, number: int) -> bytes:
    return process + number.to_bytes(8, "big")


def _place(place: int) -> bytes:
    return place.to_bytes(8, "big")


def _parts(size: int) -> int:
    return -(-size // PART_BYTES)


def _costs(row_key: bytes, entry: _Entry) -> int:
    return KEY_COSTS + len(row_key) + max(0, len(entry.key) - HEAD_BYTES) + entry.size
