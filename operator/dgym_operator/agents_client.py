"""Calls to one agent pod. The operator alone makes them, with the token that it derives from the cluster's key."""

import msgspec

from dgym.wire.assignments import ASSIGNMENTS_PATH, AgentReport, AgentRole, Assignment, make_agent_token
from dgym_operator.agents_http import PodCaller, Refused

_NOT_FOUND = 404


class AgentClient:
    """Speaks to all agents."""

    def __init__(self, caller: PodCaller, key: bytes) -> None:
        self._caller = caller
        self._token = make_agent_token(key, AgentRole.ASSIGN)

    async def report(self, url: str) -> AgentReport:
        """What the agent serves."""
        status, body = await self._caller.call("GET", url + ASSIGNMENTS_PATH, token=self._token)
        try:
            return msgspec.json.decode(body, type=AgentReport)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise Refused(status, f"its report cannot be read: {error}") from None

    async def assign(self, url: str, assignment: Assignment) -> None:
        """Give it an episode, or tell it again."""
        await self._caller.call(
            "PUT",
            f"{url}{ASSIGNMENTS_PATH}/{assignment.episode_uid}",
            token=self._token,
            body=msgspec.json.encode(assignment),
        )

    async def withdraw(self, url: str, episode_uid: str) -> None:
        """Take an episode back, or let it forget one that is over. One it does not know is withdrawn already."""
        try:
            await self._caller.call("DELETE", f"{url}{ASSIGNMENTS_PATH}/{episode_uid}", token=self._token)
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
