"""Runs commands of zfabric, each in a fork of this process, which has imported them: imports take most of the CPU time of a command.

Its standard input is a socket. Each message has a command in JSON, [arguments, environment, directory], and the descriptors of its output
and errors; the answers are the pid, and at the end the exit code. ``command_line.Commands`` starts it.
"""

import importlib
import json
import os
import socket
import sys

from zfabric.cli.main import SECTIONS, main

REQUEST_BYTES_MAX = 2**17


def serve() -> list[str]:
    """Run commands until the other end is closed. Return in the process of each, with its arguments."""
    requests = socket.socket(fileno=os.dup(0))
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 2)
        if not request:
            os._exit(0)
        process = os.fork()
        if not process:
            requests.close()
            return become(*json.loads(request), descriptors)
        requests.send(b"%d" % process)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def become(arguments: list[str], environment: dict[str, str], directory: str, descriptors: list[int]) -> list[str]:
    """Have this process be one that was started so. Return its arguments."""
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *descriptors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv[1:] = arguments
    return arguments


for module in {entry.module for _, entries in SECTIONS for entry in entries}:
    importlib.import_module(f"zfabric.cli.{module}")
main(serve())
