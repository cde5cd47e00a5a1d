"""The member: joins a cluster, and renews the node's lease."""

from zfabric.machines.member.machine import Member as Member
