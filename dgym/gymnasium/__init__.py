"""Episodes as environments of Gymnasium: importing this package registers ``dgym/Repo-v0``.

::

    import gymnasium

    import dgym.gymnasium

    env = gymnasium.make("dgym/Repo-v0", task="task.yaml", max_steps=30)

Gymnasium from 1.0 on finds environments in no other way than by such an import; ``gymnasium.make`` does it itself when
the id begins with the package: ``dgym.gymnasium:dgym/Repo-v0``. Nothing else in dgym imports Gymnasium.
"""

import gymnasium

from dgym.gymnasium.environment import GymnasiumRepoEnv, observation_space
from dgym.gymnasium.spaces import JsonValue, ToolCalls, UnicodeText

__all__ = ["ENVIRONMENT_ID", "GymnasiumRepoEnv", "JsonValue", "ToolCalls", "UnicodeText", "observation_space"]

ENVIRONMENT_ID = "dgym/Repo-v0"

gymnasium.register(
    id=ENVIRONMENT_ID,
    entry_point=f"{__name__}:{GymnasiumRepoEnv.__name__}",
    # The output of programs has times and addresses in it.
    nondeterministic=True,
)
