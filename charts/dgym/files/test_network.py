"""Part of the episode of ``helm test``: tries to connect to the places that its task names."""

import json
import os
import socket


def test_a_program_of_a_sandbox_reaches_nobody() -> None:
    """Every place refuses the connection."""
    reached = [place for place in json.loads(os.environ["PLACES"]) if reaches(*place)]
    assert not reached, f"the network of this cluster does not enforce NetworkPolicies: reached {reached}"


def reaches(host: str, port: int) -> bool:
    """Return whether the place accepts a connection."""
    try:
        with socket.create_connection((host, port), 5) as connection:
            connection.sendall(os.environ["WORD"].encode())
    except OSError:
        return False
    return True
