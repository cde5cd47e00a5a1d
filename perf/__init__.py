"""How fast it is, and how far from what the machine could do: one file a question, each with its floor measured in the same run.

``python -m perf`` lists the questions; ``python -m perf NAME...`` answers them; ``python -m perf all --peers --markdown`` makes the
table of ``docs/performance.md``, where it is also said how to read it.

``question``     what a question is, and what becomes of its samples
``questions/``   the questions
``workloads``    what is done in them, on zfabric and on other systems alike
``floors``       what the same work costs without any system: raw messages, memcpy, pickle, a bare interpreter
``peers/``       the systems: one small adapter each
``isolated``     one question in a process of its own, with a time limit
``programs``     a program in a process group of its own, with a time limit
``machine``      facts of this machine; CPU time and memory of processes
``report``       what a run found, as text and as Markdown

It uses the public API of zfabric, except where it asks for a session's processes and a daemon's statistics.
"""
