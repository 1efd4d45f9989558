"""A network of one's own: namespaces on a bridge, every link rate-limited both ways. Needs root.

The bridge is in a namespace too, so that nothing is added to the machine's own network, and
removing the namespaces removes everything. Their names are recognisably of this benchmark: a run
first removes what an earlier one, killed, has left behind.
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PREFIX = "scalecom-bench-"
SWITCH = f"{PREFIX}switch"
INTERFACE = "eth0"
# Megabits per second on a link; None: as fast as the machine copies.
RATES = {"100mbit": 100, "1gbit": 1000, "unshaped": None}

# A token bucket this deep lets through a millisecond's worth at once: small beside what an exchange
# puts on the wire, or the limit would not be one.
_BURST_SECONDS = 1e-3
_QUEUE = "50ms"
_CLONE_NEWNET = 0x40000000


class Network:
    """`size` namespaces with an interface each, as a context manager.

    Attributes:
        names: the namespaces.
        addresses: the IPv4 address of each; nobody outside can reach it.
    """

    def __init__(self, size: int):
        self.names = [f"{PREFIX}{i}" for i in range(size)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(size)]

    def __enter__(self) -> "Network":
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            remove_leftovers()
            raise
        return self

    def __exit__(self, *exc_info) -> None:
        remove_leftovers()

    def _build(self):
        _ip("netns", "add", SWITCH)
        _ip("-n", SWITCH, "link", "add", "name", "bridge0", "type", "bridge")
        _ip("-n", SWITCH, "link", "set", "bridge0", "up")
        for i, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            port = f"port{i}"
            _ip("netns", "add", name)
            _ip(
                "-n",
                name,
                "link",
                "add",
                INTERFACE,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                SWITCH,
            )
            _ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", INTERFACE, "up")
            _ip("-n", SWITCH, "link", "set", port, "master", "bridge0", "up")

    def command(self, index: int, *command: str) -> list[str]:
        """The command line that runs `command` in the namespace at `index`."""
        return ["ip", "netns", "exec", self.names[index], *command]

    def limit(self, rate: str) -> None:
        """Sets the rate (a key of `RATES`) of every link, both ways."""
        links = [(name, INTERFACE) for name in self.names]
        links += [(SWITCH, f"port{i}") for i in range(len(self.names))]
        for namespace, device in links:
            with contextlib.suppress(subprocess.CalledProcessError):  # no limit so far
                run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")
            if RATES[rate]:
                burst = RATES[rate] * 1e6 / 8 * _BURST_SECONDS
                run(
                    "tc",
                    "-n",
                    namespace,
                    "qdisc",
                    "add",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    f"{RATES[rate]}mbit",
                    "burst",
                    f"{burst:.0f}",
                    "latency",
                    _QUEUE,
                )

    def goodput(self) -> float:
        """Payload of one TCP flow over a link, in bytes per second: the best of three."""
        return max(self._flow(seconds=0.5) for _ in range(3))

    def _flow(self, seconds):
        server, sender = _socket_in(self.names[0]), _socket_in(self.names[1])
        with server, sender:
            server.bind((self.addresses[0], 0))
            server.listen()
            sender.connect(server.getsockname())
            receiver, _ = server.accept()
            with receiver:
                sending = threading.Thread(target=_send_until_closed, args=(sender,))
                sending.start()
                start, received = None, 0
                begin = time.monotonic()
                while (now := time.monotonic()) < begin + seconds:
                    size = len(receiver.recv(1 << 20))
                    if start is not None:
                        received += size
                    elif now > begin + seconds / 4:  # past slow start
                        start = time.monotonic()
                speed = received / (time.monotonic() - start)
            sending.join()
        return speed


def require_root() -> None:
    """Raises PermissionError, with what to do, unless this process may make namespaces."""
    if os.geteuid() != 0:
        raise PermissionError(
            "Expected root, which network namespaces and rate limits need; received user id "
            f"{os.geteuid()}. Run the same command under sudo. It touches namespaces named "
            f"{PREFIX}* alone."
        )


@contextlib.contextmanager
def only_run():
    """Refuses to run beside another run, whose namespaces it would take for leftovers."""
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0{PREFIX}lock")  # a name in no folder, given back by the kernel
        except OSError as error:
            raise RuntimeError(
                f"Expected no other run of this benchmark; received: {error.strerror}. "
                "Wait for its end: two would share the machine and spoil each other's times."
            ) from None
        yield


def remove_leftovers() -> None:
    """Removes every namespace of this benchmark."""
    for line in run("ip", "netns", "list").splitlines():
        if line.startswith(PREFIX):
            _ip("netns", "delete", line.split()[0])


def run(*command: str) -> str:
    """Runs a command; returns its output, raises CalledProcessError with its words."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        error = subprocess.CalledProcessError(done.returncode, command)
        error.add_note(done.stderr.strip())
        raise error
    return done.stdout


def _ip(*arguments):
    run("ip", *arguments)


def _socket_in(namespace):
    """A TCP socket in a namespace: it stays where it was made."""

    def make():
        with open(f"/run/netns/{namespace}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
        return socket.socket()

    with ThreadPoolExecutor(max_workers=1) as thread:  # it alone changes its namespace
        return thread.submit(make).result()


def _send_until_closed(sender):
    block = bytes(1 << 20)
    with contextlib.suppress(ConnectionError):
        while True:
            sender.sendall(block)
