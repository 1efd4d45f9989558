"""Proxies of the environment, and how the workers of a cluster go around them.

gRPC, which TensorFlow's workers talk by, sends connections to other hosts through the proxy that
the environment names, as for HTTP. Where `no_grpc_proxy` is set it counts in place of `no_proxy`,
for gRPC alone: HTTP clients in the same process keep their proxy.
"""

import os
from collections.abc import Iterable

from tf_scalecom.workers.addresses import host_and_port

# gRPC reads the first of these that is set, and no upper case; other programs read that, too.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = "no_grpc_proxy"
_EXCEPTIONS_OF_ALL = "no_proxy"


def in_environment() -> list[str]:
    """Names of the variables that name a proxy; not their values, which may hold a password."""
    return [
        variable
        for name in _PROXIES
        for variable in (name, name.upper())
        if os.environ.get(variable)
    ]


def go_around(addresses: Iterable[str]) -> None:
    """Has gRPC connect to these addresses without a proxy, whatever the environment says or will.

    Call it before TensorFlow starts its server, as gRPC asks when it first connects.

    Args:
        addresses: "host:port"; IPv6 in [], where gRPC compares what is inside.
    """
    exceptions = os.environ.get(_EXCEPTIONS, os.environ.get(_EXCEPTIONS_OF_ALL, ""))
    hosts = [each.strip() for each in exceptions.split(",") if each.strip()]
    hosts += [host_and_port(address)[0] for address in addresses]
    os.environ[_EXCEPTIONS] = ",".join(dict.fromkeys(hosts))
