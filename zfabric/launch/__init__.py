"""Clusters where people run them: on the machines of a batch job, on machines reached by ssh, in pods.

Everything here starts, finds and ends nodes from outside; a node does not know how it was launched. The command line is in ``zfabric.cli``.
"""
