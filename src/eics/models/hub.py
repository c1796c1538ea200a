"""Whether the hub can be reached: without a network its client retries for half a minute before it says so."""

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_TIMEOUT = 5.0  # seconds for a connection; slower networks are of no use for downloads of gigabytes


def hub_is_unreachable() -> bool:
    """Whether a connection to the hub fails; behind a proxy nobody knows before trying."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    address = urlsplit(constants.ENDPOINT)
    if address.hostname is None or address.scheme in getproxies():
        return False
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=_TIMEOUT).close()
    except OSError:
        return True
    return False
