"""Tests of the tokens that an agent pod accepts: the operator's, for this pod and hour, and that for results."""

import pytest

from dgym.episodes.agent_pod._tokens import Tokens, main, write_tokens
from dgym.wire.assignments import AgentPodRole, make_agent_pod_key, make_assign_token, make_pool_key, make_results_token
from dgym.wire.http import token_digest

KEY = b"key"
POOL_KEY = make_pool_key(KEY, "")
HOUR = 500_000
RESULTS = make_results_token(KEY)


@pytest.fixture
def pool(tmp_path):
    made = tmp_path / "pool"
    made.mkdir()
    (made / "pool-key").write_text(POOL_KEY)
    (made / "results-token-sha256").write_text(token_digest(RESULTS))
    return made


@pytest.fixture
def tokens(pool, tmp_path):
    (tmp_path / "tokens").mkdir()
    write_tokens(pool, tmp_path / "tokens", "uid")
    return Tokens(tmp_path / "tokens", clock=lambda: HOUR * 3600 + 1800.0)


def assign(*, key=POOL_KEY, uid="uid", hour=HOUR):
    return make_assign_token(make_agent_pod_key(key, uid), hour)


@pytest.mark.parametrize(("hour", "allowed"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_a_token_lasts_for_its_hour_and_as_long_as_clocks_may_differ(tokens, hour, allowed):
    assert tokens.allows(f"Bearer {assign(hour=HOUR + hour)}", AgentPodRole.ASSIGN) == allowed


@pytest.mark.parametrize(
    "token",
    [
        assign(uid="another"),
        assign(key=make_pool_key(KEY, "research")),
        make_assign_token(POOL_KEY, HOUR),
        RESULTS,
        "",
        "\udcff",
    ],
    ids=["another agent", "another pool", "key of the pool", "token for results", "empty", "not ASCII"],
)
def test_other_tokens_are_not_accepted_as_the_operators(tokens, token):
    assert not tokens.allows(f"Bearer {token}", AgentPodRole.ASSIGN)


def test_results_are_read_with_their_own_token(tokens):
    assert tokens.allows(f"bearer {RESULTS}", AgentPodRole.RESULTS)
    assert not tokens.allows(f"Bearer {assign()}", AgentPodRole.RESULTS)
    assert not tokens.allows(RESULTS, AgentPodRole.RESULTS)


def test_the_agent_gets_no_key_of_the_pool(pool, tmp_path):
    for _ in range(2):  # A restarted container writes the same files.
        (tmp_path / "tokens").mkdir(exist_ok=True)
        write_tokens(pool, tmp_path / "tokens", "uid")
    written = {path.name: path.read_text() for path in (tmp_path / "tokens").iterdir()}
    assert written == {"agent-key": make_agent_pod_key(POOL_KEY, "uid"), "results-token-sha256": token_digest(RESULTS)}


def test_missing_files_and_variables_are_reported(pool, tmp_path, capsys):
    with pytest.raises(ValueError, match="DGYM_AGENT_POD_UID"):
        write_tokens(pool, tmp_path, "")
    (pool / "pool-key").write_text("short")
    with pytest.raises(ValueError, match="pool-key must contain 64 hexadecimal digits"):
        write_tokens(pool, tmp_path, "uid")
    assert main({}) == 2
    assert "DGYM_AGENT_POD_UID" in capsys.readouterr().err


def test_without_its_token_files_an_agent_pod_refuses_all_callers(tmp_path):
    for role in AgentPodRole:
        assert not Tokens(tmp_path).allows(f"Bearer {assign()}", role)
