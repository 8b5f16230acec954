"""Entry point of the agent pod: ``python -m dgym.episodes.agent_pod``.

With the argument ``tokens`` it runs as the init container, see ``tokens``.
"""

import asyncio
import os
import sys

from pydantic import ValidationError

from dgym.decoding import setting_problems
from dgym.episodes.agent_pod import _tokens
from dgym.episodes.agent_pod._server import PREFIX, AgentPodSettings, serve
from dgym.episodes.agent_pod._telemetry import configure_logging
from dgym.errors import DgymError
from dgym.metric_types import omit_creation_times


def main() -> int:
    """Serve until the pod is terminated. Return the exit status: 2 if the environment is invalid."""
    if sys.argv[1:] == ["tokens"]:
        return _tokens.main(os.environ)
    try:
        settings = AgentPodSettings()
    except ValidationError as error:
        for problem in setting_problems(error.errors(), PREFIX):
            sys.stderr.write(f"dgym.episodes.agent_pod: {problem}\n")
        return 2
    omit_creation_times()
    configure_logging(level=settings.log_level, pod=settings.pod_name)
    try:
        asyncio.run(serve(settings))
    except DgymError as error:
        sys.stderr.write(f"dgym.episodes.agent_pod: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
