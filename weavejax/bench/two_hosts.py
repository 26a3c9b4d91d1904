"""Two network namespaces as two hosts, joined by a link that delays every packet.

Linux only, as root, with ``ip`` and ``/dev/net/tun``. Each namespace has its own network stack;
one TUN device in each is the only way out, and this process carries the packets between them and
holds each for the delay. Group 0 and the coordinator are on one host, group 1 on the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weavejax.plan import Plan
from weavejax.workers.launch import LocalLauncher, Place
from weavejax.workers.orders import Orders
from weavejax.workers.share import WorkerName

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU_BYTES = 9000


def why_not() -> str | None:
    """Why namespaces cannot be made here, or ``None`` when they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "the ip command is not installed"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun does not exist"
    result = subprocess.run(["unshare", "-n", "true"], capture_output=True)
    return None if result.returncode == 0 else "network namespaces are not permitted"


class TwoHostsLauncher(LocalLauncher):
    """Starts workers of group 0 in this process's namespace and of others in the second."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace

    def place(self, plan: Plan, interface: str) -> dict[WorkerName, Place]:
        places = super().place(plan, interface)
        return {
            name: Place(
                interface=ADDRESSES[min(name.group, 1)],
                cores=place.cores,
                host=f"namespace {min(name.group, 1)}",
            )
            for name, place in places.items()
        }

    def start(self, name: WorkerName, orders: Orders) -> None:
        prefix = ("ip", "netns", "exec", self._namespace) if name.group else ()
        self.host.start(str(name), orders.to_dict(), prefix=prefix)


@contextlib.contextmanager
def two_namespaces(delay_s: float) -> Iterator[tuple[str, str]]:
    """Two joined namespaces; their names.

    Raises:
        OSError: they are not permitted here (see :func:`why_not`).
        subprocess.CalledProcessError: ``ip`` refused.
    """
    names = (f"weavejax-{os.getpid()}-0", f"weavejax-{os.getpid()}-1")
    devices = [_open_tun(f"wj{os.getpid() % 10_000_000}{index}") for index in range(2)]
    stop = threading.Event()
    made: list[str] = []
    try:
        for index, (name, (_, device)) in enumerate(zip(names, devices, strict=True)):
            _ip("netns", "add", name)
            made.append(name)
            _ip("link", "set", device, "netns", name)
            peer = ADDRESSES[1 - index]
            _ip("-n", name, "addr", "add", ADDRESSES[index], "peer", peer, "dev", device)
            _ip("-n", name, "link", "set", device, "mtu", str(_MTU_BYTES), "up")
            _ip("-n", name, "link", "set", "lo", "up")
        ends = (devices[0][0], devices[1][0])
        carrier = threading.Thread(target=_carry, args=(*ends, delay_s, stop), daemon=True)
        carrier.start()
        yield names
        stop.set()
        carrier.join()
    finally:
        stop.set()
        for name in made:
            _ip("netns", "del", name)
        for descriptor, _ in devices:
            os.close(descriptor)


def measure_two_hosts(
    model_name: str, delay_s: float, *, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Serve a plan over the boundary and measure its round-trip time, in a child process.

    Returns:
        ``points`` as of :func:`weavejax.bench.overlap.measure_overlap`, and ``same``: whether the
        tokens are those of one process.

    Raises:
        RuntimeError: the child failed; with its last words.
    """
    with two_namespaces(delay_s) as (here, there):
        result = subprocess.run(
            ["ip", "netns", "exec", here, sys.executable, "-m", "weavejax.bench.two_hosts_child"],
            input=json.dumps({"model": model_name, "namespace": there, **arguments}),
            capture_output=True,
            text=True,
        )
    if result.returncode:
        raise RuntimeError(f"serving over two namespaces failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _open_tun(name: str) -> tuple[int, str]:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(descriptor, _TUNSETIFF, request)
    return descriptor, name


def _carry(left: int, right: int, delay_s: float, stop: threading.Event) -> None:
    """Move packets both ways, each after the delay, in order."""
    across = {left: right, right: left}
    flying: list[tuple[float, int, int, bytes]] = []
    order = itertools.count()
    while not stop.is_set():
        wait_s = max(0.0, flying[0][0] - time.monotonic()) if flying else 0.1
        ready, _, _ = select.select([left, right], [], [], wait_s)
        for end in ready:
            packet = os.read(end, _MTU_BYTES + 100)
            due_s = time.monotonic() + delay_s
            heapq.heappush(flying, (due_s, next(order), across[end], packet))
        while flying and flying[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(flying)
            with contextlib.suppress(OSError):  # its namespace is going away
                os.write(end, packet)
