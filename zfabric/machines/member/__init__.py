"""The member: a node's part in its cluster. It joins, and renews the node's lease."""

from zfabric.machines.member.machine import Member as Member
