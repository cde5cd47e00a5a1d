"""A journal in memory with the interface of ``Journal``, for tests and the simulator."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from zfabric.adapters.journal import Done, Transaction
from zfabric.machines.common.tables import KEY_BYTES_MAX, TABLES, Pair

Rows = dict[str, dict[bytes, bytes]]


class MemoryJournal:
    """Tables as dictionaries. While ``full`` is not empty, commits fail for that reason.

    With ``deferred``, a commit waits for ``complete``, as for the commit thread of "power".
    """

    report = ""

    def __init__(self, deferred: bool = False, rows: Rows | None = None) -> None:
        self.full = ""
        self._deferred = deferred
        self._rows: Rows = rows if rows is not None else {table: {} for table in TABLES}
        self._order: dict[str, list[bytes]] = {}
        self._under_way: list[tuple[Sequence[Transaction], Done]] = []

    def get(self, table: str, key: bytes) -> bytes | None:
        """As ``Journal.get``."""
        return self._rows[table].get(key)

    def scan(self, table: str, prefix: bytes = b"", after: bytes = b"", limit: int = 1000) -> list[Pair]:
        """As ``Journal.scan``."""
        keys, values = self._keys(table), self._rows[table]
        index = bisect.bisect_right(keys, after) if after >= prefix and after else bisect.bisect_left(keys, prefix)
        rows: list[Pair] = []
        while index < len(keys) and len(rows) < limit and keys[index].startswith(prefix):
            rows.append((keys[index], values[keys[index]]))
            index += 1
        return rows

    def floor(self, table: str, prefix: bytes, key: bytes) -> Pair | None:
        """As ``Journal.floor``."""
        keys = self._keys(table)
        index = bisect.bisect_right(keys, key) - 1
        if index < 0 or not keys[index].startswith(prefix):
            return None
        return keys[index], self._rows[table][keys[index]]

    def commit(self, transactions: Sequence[Transaction], done: Done) -> None:
        """As ``Journal.commit``."""
        while self._under_way:
            self.complete()
        self._under_way.append((transactions, done))
        if not self._deferred:
            self.complete()

    def complete(self) -> bool:
        """Apply the commit under way, or roll it back if ``full``. Return False if there is none."""
        if not self._under_way:
            return False
        transactions, done = self._under_way.pop(0)
        text = self.full or self._refusal(transactions)
        if not text:
            for transaction in transactions:
                for table, key, value in transaction.puts:
                    self._rows[table][key] = bytes(value)
                for table, key in transaction.deletes:
                    self._rows[table].pop(key, None)
            self._order.clear()
        done(text)
        return True

    def crash(self) -> MemoryJournal:
        """Drop the commits under way; return the next process's journal."""
        self._under_way.clear()
        return MemoryJournal(self._deferred, self._rows)

    def close(self) -> None:
        """End the commits under way."""
        while self.complete():
            pass

    def _keys(self, table: str) -> list[bytes]:
        keys = self._order.get(table)
        if keys is None:
            keys = self._order[table] = sorted(self._rows[table])
        return keys

    @staticmethod
    def _refusal(transactions: Sequence[Transaction]) -> str:
        keys = [row[1] for transaction in transactions for row in (*transaction.puts, *transaction.deletes)]
        return "" if all(0 < len(key) <= KEY_BYTES_MAX for key in keys) else "a key has the wrong length"
