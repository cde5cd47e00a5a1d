"""Which estimate of a task's duration places tasks best? ``python -m perf.estimates``.

The paper uses averages and gives no reason. Here its policy places recorded loads by them, and by other estimates.

``record``  durations of tasks of small programs, recorded once (``loads.json``)
``model``   nodes with queues, whose tasks the real global scheduler places
"""
