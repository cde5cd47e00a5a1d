"""What follows from the exit of a process."""

from __future__ import annotations

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.records import DONE, ProcessRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m


class Departures:
    """Releases what processes held."""

    def __init__(
        self, tables: Tables, references: References, outcomes: Outcomes, direct: DirectSubmissions, actors: ActorDirectory
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.direct = direct
        self.actors = actors

    def release(self, process: ProcessRecord) -> None:
        """Release all of a process that is gone."""
        self.tables.drop_process(process)
        self.outcomes.process_gone(process)
        self.direct.driver_gone(process)
        if process.kind != "node":  # The holds of a dead node are released after the succession.
            self.references.process_gone(process.incarnation)
        self.actors.process_gone(process.incarnation)
        self.tables.send_to_store(m.ProcessGone(process.incarnation))

    def pass_on(self, gone: bytes, driver: ProcessRecord) -> None:
        """Have the driver inherit a dead worker's tasks, to repeat them to a restarted scheduler.

        Not those being stopped: the driver would have them run again.
        """
        tasks = [task for task in self.tables.tasks.values() if task.submitter == gone and task.state != DONE]
        tasks = [task for task in tasks if task.function.queue.job is driver.job]
        tasks = [task for task in tasks if task.rare is None or not task.rare.stopped]
        for task in tasks:
            task.submitter = driver.incarnation
        for start in range(0, len(tasks), 256):
            batch = tasks[start : start + 256]
            functions = {task.function.id: task.function for task in batch}.values()
            exported = tuple((each.id, each.name, each.payload, each.options) for each in functions)
            self.tables.send_to_client(driver, m.InheritTasks(tuple(task.row for task in batch), exported))
