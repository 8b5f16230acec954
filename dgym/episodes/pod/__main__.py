"""``python -m dgym.episodes.pod``: what the container of an agent pod runs, and before it, with ``tokens``, another."""

import asyncio
import os
import sys

from pydantic import ValidationError

from dgym.episodes.pod import tokens
from dgym.episodes.pod.logs import configure_logging
from dgym.episodes.pod.server import PREFIX, AgentSettings, serve
from dgym.errors import DgymError
from dgym.metrics import omit_creation_times


def main() -> int:
    """Serve; 2 when the environment is wrong."""
    if sys.argv[1:] == ["tokens"]:
        return tokens.main(os.environ)
    try:
        settings = AgentSettings()
    except ValidationError as error:
        for problem in error.errors():
            name = PREFIX + "_".join(str(part) for part in problem["loc"]).upper()
            sys.stderr.write(f"dgym.episodes.pod: {name}: {problem['msg']}\n")
        return 2
    omit_creation_times()
    configure_logging(level=settings.log_level, pod=settings.pod_name)
    try:
        asyncio.run(serve(settings))
    except DgymError as error:
        sys.stderr.write(f"dgym.episodes.pod: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
