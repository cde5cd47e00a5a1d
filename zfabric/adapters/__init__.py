"""One outside mechanism in each module: sockets, journal, arena, serialization, processes."""
