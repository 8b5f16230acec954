"""Part of the episode of ``helm test``: what it reaches of the places that its task names."""

import json
import os
import socket


def test_a_program_of_a_sandbox_reaches_nobody() -> None:
    """No place takes a connection."""
    reached = [place for place in json.loads(os.environ["PLACES"]) if reaches(*place)]
    assert not reached, f"the network of this cluster does not enforce NetworkPolicies: reached {reached}"


def reaches(host: str, port: int) -> bool:
    """Whether the place takes a connection."""
    try:
        with socket.create_connection((host, port), 5) as connection:
            connection.sendall(os.environ["WORD"].encode())
    except OSError:
        return False
    return True
