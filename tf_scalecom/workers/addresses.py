"""Addresses of tasks, "host:port": what may be one, and which are the same.

Both Python, where workers meet, and TensorFlow's gRPC have to understand them alike.
"""

import contextlib
import ipaddress
import re

_WRITTEN = re.compile(r"([^\s/@:\[\]]+|\[[^\s/@\[\]]+\]):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_LONGEST_NAME = 253


def expected_instead(address: str) -> str | None:
    """What there should be in place of an address, in words; None if it may be one."""
    written = _WRITTEN.fullmatch(address)
    if not written or not 0 < int(written["port"]) < 65536:
        return (
            "addresses of the form host:port (neither http:// nor a path; a port from 1 to 65535; "
            "IPv6 in [])"
        )
    host = written[1]
    if host.startswith("["):
        return None if _is_ipv6(host[1:-1]) else "nothing but IPv6 addresses in []"
    if not host.isascii():
        # Python would look up the name that DNS has for it, and gRPC what is written.
        return f"hosts' names in ASCII, as DNS has them{_ascii_form(host)}"
    if not _NAME.fullmatch(host) or len(host.removesuffix(".")) > _LONGEST_NAME:
        return (
            "hosts' names of letters, digits, - and _, 1 to 63 between dots and "
            f"{_LONGEST_NAME} in all"
        )
    return None


def host_and_port(address: str) -> tuple[str, int]:
    """An address as `socket` takes it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def place(address: str) -> tuple[str, int]:
    """Host and port, alike for all spellings of an address that can be told without asking DNS."""
    host, port = host_and_port(address)
    host = host.lower().removesuffix(".")
    with contextlib.suppress(ValueError):  # a name
        number = ipaddress.ip_address(host)
        number = getattr(number, "ipv4_mapped", None) or number
        own = number.is_loopback or number.is_unspecified
        host = "localhost" if own else str(number)
    return host, port


def _is_ipv6(text):
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _ascii_form(host):
    with contextlib.suppress(UnicodeError):
        return f" ({host.encode('idna').decode()})"
    return ""
