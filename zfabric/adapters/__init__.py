"""One outside mechanism each: sockets, journal, arena, serialization, processes."""
