"""Pods of a Kubernetes manifest, as a kubelet would run them, made of namespaces.

Each has an address, a name, a file system and a first process.

The manifest itself says what runs: command, environment, user, mounts, ports, grace. Containers of a pod that end are started again by hand
(``Pod.start``), with the pod's address and volumes. It needs root. What this cannot show: admission, scheduling, what a storage class does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import veth
import yaml
from command_line import Place
from faults import PATIENCE

from zfabric.adapters.processes import children

ROOT = Path(__file__).resolve().parent.parent
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc")
KEY = "cluster.key"
OWN = ("tmp", "proc", "keys", "store", "app")
"""Directories of a pod's own, and /app; the others are those of this machine, which is the image."""
IMAGE = sorted({ROOT, Path(sys.prefix), Path(sys.base_prefix)})
"""What runs in pods, also where a directory above is a pod's own or lets no other user pass."""

# The pod's root, hosts and name, what the image lacks; places and sources of mounts up to "--"; the command.
SET_UP = """
set -e
root=$1; hosts=$2; hostname "$3"; own=$4; shift 4
mount -t tmpfs none "$root"
for each in /*; do
  name=${each#/}
  if [ -L "$each" ]; then cp -P "$each" "$root/$name"; continue; fi
  case " $own " in *" $name "*) continue ;; esac
  [ -d "$each" ] || continue
  mkdir "$root/$name"; mount --rbind "$each" "$root/$name"; mount -o remount,bind,ro "$root/$name"
done
mount --bind "$hosts" "$root/etc/hosts"
mkdir "$root/proc"; mount -t proc none "$root/proc"
while [ "$1" != -- ]; do mkdir -p "$root$1"; mount --bind "$2" "$root$1"; shift 2; done
shift
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""


def why_not() -> str:
    """Return why there can be no pods here; empty if there can."""
    if os.geteuid() != 0:
        return "only root can mount"
    missing = [name for name in ("unshare", "nsenter", "setpriv", "chroot", "ip") if shutil.which(name) is None]
    if missing:
        return f"no {missing[0]}"
    command = ["unshare", *NAMESPACES, "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return veth.why_not() if done.returncode == 0 else done.stderr.strip()


def read(path: Path) -> list[dict[str, Any]]:
    """The documents of a manifest."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


class Machine(veth.Network):
    """The machine on which pods run, at the address ``here`` of their network."""

    here = f"{veth.SUBNET}.254"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pods: list[Pod] = []
        self.hosts = directory / "hosts"
        self.program = directory / "app"
        """What the image has at /app."""

    def __enter__(self) -> Machine:
        super().__enter__()
        self._numbers["this machine"] = 1
        self._pids["this machine"] = self._hub
        veth._ip(self._hub, f"address add {self.here}/24 dev bridge", "link set lo up")
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.program.mkdir()
        self.directory.chmod(0o755)
        return self

    def __exit__(self, *error: Any) -> None:
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.kill()
            pod.process.communicate()
        super().__exit__(*error)

    def keys(self) -> dict[str, bytes]:
        """New keys, by the names of their files."""
        Place(str(self.directory)).run("keys", "create", KEY)
        return {name: (self.directory / name).read_bytes() for name in (KEY, f"{KEY}.head")}

    def secret(self, name: str, group: int, **files: bytes) -> Path:
        """A volume as a kubelet makes it of a Secret: links to files that the pod's group may read."""
        volume = self.directory / name
        (volume / "..2026").mkdir(parents=True)
        (volume / "..data").symlink_to("..2026")
        for file, content in files.items():
            (volume / "..2026" / file).write_bytes(content)
            (volume / "..2026" / file).chmod(0o440)
            os.chown(volume / "..2026" / file, 0, group)
            (volume / file).symlink_to(f"..data/{file}")
        return volume

    def pid(self, pod: str) -> int:
        """A process in a pod's network namespace, which remains when its container ends."""
        return self._pids[pod]

    def reaches(self, address: str, port: int) -> bool:
        """Whether a probe's connection is accepted."""

        def connect() -> bool:
            try:
                socket.create_connection((address, port), timeout=1).close()
            except OSError:
                return False
            return True

        return cast(bool, self.within("this machine", connect))


class Pod:
    """One pod of a template, with one container. ``start`` runs it, again after an end."""

    def __init__(
        self, machine: Machine, name: str, service: str, template: dict[str, Any], volumes: dict[str, Path], **environment: str
    ) -> None:
        self.machine, self.name, self.spec, self._more = machine, name, template["spec"], environment
        (self.container,) = self.spec["containers"]
        self.address = machine.attach(name)
        with machine.hosts.open("a") as hosts:  # In place: it is mounted in other pods.
            hosts.write(f"{self.address} {name} {service} {name}.{service}\n")
        user = self.spec["securityContext"]
        self.user, self.group = user["runAsUser"], user["fsGroup"]
        self.mounts = {"/app": machine.program}
        for mount in self.container["volumeMounts"]:
            place = volumes.get(mount["name"])
            if place is None:  # An emptyDir, or a claim that is filled with nothing.
                place = machine.directory / name / mount["name"]
                place.mkdir(parents=True)
                os.chown(place, 0, self.group)
                place.chmod(0o2777)
            self.mounts[mount["mountPath"]] = place
        assert set(self.mounts) <= {f"/{name}" for name in OWN}
        self.root = machine.directory / name / "root"
        self.root.mkdir()
        self.process: subprocess.Popen[str]
        machine.pods.append(self)

    def start(self, *options: str) -> None:
        """Run the container; ``options`` are added to ``zfabric start`` or ``run`` in its command."""
        (line,) = self.container["args"]
        begun, dashes, program = line.partition(" -- ")
        command = [*self.container["command"], " ".join([begun, *map(shlex.quote, options)]) + dashes + program]
        isolated = ["nsenter", f"--net=/proc/{self.machine.pid(self.name)}/ns/net", "unshare", *NAMESPACES, "--fork"]
        set_up = ["sh", "-c", SET_UP, "sh", str(self.root), str(self.machine.hosts), self.name, *self._mounts(), "--"]
        self.process = subprocess.Popen(
            [*isolated, *set_up, *self._as_user(), *command], env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _mounts(self) -> list[str]:
        """Directories that the image lacks; then places and sources of mounts."""
        closed = {path.parts[1] for path in IMAGE if not _others_pass(path)}
        image = {str(path): path for path in IMAGE if path.parts[1] in {*OWN, *closed}}
        mounts = [str(part) for place in (self.mounts, image) for pair in place.items() for part in pair]
        return [" ".join({*OWN, *closed}), *mounts]

    def _as_user(self) -> list[str]:
        rights = self.container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert not rights["allowPrivilegeEscalation"]
        user = ["--reuid", str(self.user), "--regid", str(self.group), "--groups", str(self.group)]
        return ["setpriv", *user, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]

    def environment(self) -> dict[str, str]:
        """The container's environment."""
        found = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
        for each in self.container.get("env", ()):
            if "value" in each:
                found[each["name"]] = each["value"]
            else:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
                found[each["name"]] = self.address
        return found | self._more

    def first(self) -> int:
        """The pid, here, of the pod's first process."""
        (pid,) = children(self.process.pid)
        return pid

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """Begin a command in the container, as ``kubectl exec`` does."""
        enter = ["nsenter", "-t", str(self.first()), "--net", "--root", *NAMESPACES]
        return subprocess.Popen(
            [*enter, *self._as_user(), *command], env=self.environment(), cwd="/tmp",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *command: str) -> tuple[int, str, str]:
        """Run a command in the container; its exit code, output and errors."""
        running = self.begin(*command)
        output, errors = running.communicate(timeout=PATIENCE)
        return running.returncode, output, errors

    def listens(self) -> bool:
        """Whether its readiness probe succeeds."""
        assert self.process.poll() is None, self.process.communicate()
        name = self.container["readinessProbe"]["tcpSocket"]["port"]
        (port,) = [each["containerPort"] for each in self.container["ports"] if each["name"] == name]
        return self.machine.reaches(self.address, port)

    def terminate(self) -> None:
        """Send SIGTERM to the first process, as at a pod's deletion."""
        os.kill(self.first(), signal.SIGTERM)

    def kill(self) -> None:
        """End all processes of the container, as when the machine is short of memory."""
        os.kill(self.first(), signal.SIGKILL)

    def result(self) -> tuple[int, str, str]:
        """The exit code of the container, its output and errors, once it has ended by itself."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors

    def end(self) -> tuple[int, str]:
        """The exit code of the container and its errors, once it has ended within its grace."""
        _, errors = self.process.communicate(timeout=self.spec["terminationGracePeriodSeconds"])
        return self.process.returncode, errors


def _others_pass(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in path.parents)
