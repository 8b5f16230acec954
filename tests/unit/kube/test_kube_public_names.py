"""Tests of the public names of the API layer. A removal breaks users, and an addition needs a decision."""

import subprocess
import sys

import dgym.kube as kube

NAMES = """
CONFIG_MAPS DEBUG_TASKS EPISODES EPISODE_SETS EVENTS LEASES NAMESPACES NETWORK_POLICIES PODS RESOURCE_QUOTAS
SANDBOX_POOLS SECRETS SUBJECT_ACCESS_REVIEWS TOKEN_REVIEWS ClusterAccess AccessError AlreadyExists ApiResponse
ApiError Backoff BadRequest ObjectChange Client Clock Conflict ConnectionLost EventRecorder EventType Expired
Credentials Forbidden Invalid Key LeaderElector LeadershipLost LeaseRecord SERVICE_ACCOUNT LeaseSpec NotFound Object
PortForward PortUnreachable Priority QueueClosed Reflector ApiRequest Resource ServerUnavailable ChangeSource
InformerStore SystemClock TokenBucket TooManyRequests Transport Unauthorized UnreadableAnswer WatchSettings
WorkQueue key_of load_access
"""


def test_the_public_names_are_these() -> None:
    assert sorted(kube.__all__) == sorted(NAMES.split())
    assert all(hasattr(kube, name) for name in kube.__all__)


def test_the_heavy_client_library_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, dgym.kube; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
