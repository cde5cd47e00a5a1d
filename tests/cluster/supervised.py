"""Entry points for supervisors under test: a daemon that the test controls, and workers that run the code of their job.

The daemon passes on what the test sends through a socket of the session (``Supervision``'s methods by name) and sends
back the events it receives. A worker's job is Python source.
"""

from __future__ import annotations

import os
import select
import signal
import socket

import msgpack

from zfabric.runtime.session import STOP, Session
from zfabric.runtime.supervision import Supervision


def daemon(directory: str, descriptor: int, daemons: int) -> None:
    session = Session(directory)
    supervision = Supervision(descriptor)
    incarnation = os.urandom(8)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(session.socket_path(incarnation))
    listener.listen()
    signal.signal(STOP, on_stop)
    session.publish_daemon(incarnation)
    test, _ = listener.accept()
    test.send(msgpack.packb(("hello", os.getpid(), daemons)))
    while True:
        for ready in select.select([test, supervision], [], [])[0]:
            if ready is supervision:
                for event in supervision.receive():
                    test.send(msgpack.packb((type(event).__name__, *event)))
            else:
                what, *arguments = msgpack.unpackb(test.recv(65536), use_list=False)
                getattr(supervision, what)(*arguments)


def on_stop(number: int, frame: object) -> None:
    mark = os.environ.get("SUPERVISED_MARK")
    if mark:
        with open(mark, "w") as file:
            file.write("ended in order")
    os._exit(0)


def broken_daemon(directory: str, descriptor: int, daemons: int) -> None:
    raise RuntimeError("this daemon was born broken")


def worker(session: Session, token: bytes, job: bytes) -> None:
    exec(job.decode(), {"session": session, "token": token})
