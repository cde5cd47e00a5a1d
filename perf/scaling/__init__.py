"""How many tasks a second clusters of 1 to 1,000 nodes would run, and which role is busy first: ``python -m perf.scaling``.

No machine of two cores runs a thousand nodes. So the machines of all of them run in the simulator, and whatever a process does takes
its time by measured costs, on a core of its own.

``costs``     what one task or message costs each role, and how that is measured
``world``     nodes of the simulator whose processes are busy while they work
``loads``     what such a cluster is asked to do
``picture``   the figures as a picture and a table
"""
