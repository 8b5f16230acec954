import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import islice

from hypothesis import assume, given
from hypothesis import strategies as st

from dgym_operator.chart_values import NamespacePolicies, NamespacePolicy
from dgym_operator.dispatch._admission import Candidate, ModelsOut, NamespaceUsage, PullBudget, Requests, choose

START = datetime(2026, 1, 1, tzinfo=UTC)
EQUAL = NamespacePolicies()
NOTHING = NamespaceUsage()


def candidate(priority=0, age=0, **more):
    return Candidate(priority=priority, created=START - timedelta(seconds=age), **more)


def requests_of(candidates, namespace="team"):
    return Requests({(namespace, name): each for name, each in candidates.items()})


def policies_of(**fields):
    return NamespacePolicies(overrides={name: NamespacePolicy(**own) for name, own in fields.items()})


def order(requests, slots=1000, usage=NOTHING, policies=EQUAL):
    return [name for _, name in requests.in_turn(slots, usage, policies)]


def chosen(requests, free, usage=NOTHING, policies=EQUAL):
    return {name: agent for (_, name), agent in choose(requests, free, usage, policies).items()}


def test_highest_priority_first_then_oldest():
    requests = requests_of({"young": candidate(), "old": candidate(age=10), "urgent": candidate(priority=1)})
    assert order(requests) == ["urgent", "old", "young"]
    assert order(requests, 2) == ["urgent", "old"]
    assert order(requests, -1) == []


def test_episodes_of_the_same_second_are_in_the_order_of_their_indexes():
    arms = ["set-pdb-0", "set-plain-0", "set-pdb-1", "set-plain-1"]
    candidates = {name: candidate(index=index) for index, name in enumerate(arms)}
    assert order(requests_of(dict(reversed(candidates.items())))) == arms


def test_namespaces_take_turns_and_priority_decides_within_each():
    requests = Requests(
        {
            ("loud", "loud-1"): candidate(1000, 9),
            ("loud", "loud-2"): candidate(1000, 8),
            ("loud", "loud-3"): candidate(1000, 7),
            ("quiet", "quiet-1"): candidate(0, 2),
            ("quiet", "quiet-2"): candidate(1, 1),
        }
    )
    assert order(requests) == ["loud-1", "quiet-2", "loud-2", "quiet-1", "loud-3"]
    assert order(requests, 3, NamespaceUsage(slots={"loud": 2})) == ["quiet-2", "quiet-1", "loud-1"]
    assert chosen(requests, {"agent": 1}, NamespaceUsage(slots={"loud": 1})) == {"quiet-2": "agent"}


def test_a_namespace_of_three_times_the_weight_gets_three_times_the_slots():
    requests = Requests({(team, f"{team}-{number}"): candidate() for team in ("one", "three") for number in range(90)})
    granted = Counter(key[0] for key in requests.in_turn(80, NOTHING, policies_of(three={"weight": 3})))
    assert granted == {"one": 20, "three": 60}


def test_a_namespace_with_max_active_episodes_starts_no_others_but_those_it_has_go_on():
    policies = policies_of(team={"max_active": 3})
    requests = requests_of({"new-1": candidate(9), "new-2": candidate(8), "lost": candidate(active=True)})
    assert order(requests, usage=NamespaceUsage(active={"team": 3}), policies=policies) == ["lost"]
    assert order(requests, usage=NamespaceUsage(active={"team": 2}), policies=policies) == ["new-1", "lost"]
    assert order(requests, usage=NamespaceUsage(active={"team": 9}), policies=policies) == ["lost"]
    outside = requests_of({"outside": candidate(needs_slot=False), "inside": candidate(age=1)})
    assert order(outside, usage=NamespaceUsage(active={"team": 2}), policies=policies) == ["inside"]
    assert order(outside, 0, usage=NamespaceUsage(active={"team": 2}), policies=policies) == ["outside"]


def test_requests_without_a_slot_do_not_count_against_their_namespace():
    requests = Requests(
        {
            ("a", "outside"): candidate(1, needs_slot=False),
            ("a", "inside"): candidate(),
            ("b", "other"): candidate(0, -1),
        }
    )
    assert order(requests) == ["outside", "inside", "other"]


def test_agents_with_the_most_free_slots_are_filled_first():
    found = chosen(
        requests_of({name: candidate(age=number) for number, name in enumerate("abcd")}), {"one": 1, "three": 3}
    )
    assert sorted(found.values()) == ["one", "three", "three", "three"]
    assert chosen(requests_of({"only": candidate()}), {"one": 1, "three": 3}) == {"only": "three"}


def test_another_agent_is_better_than_the_one_that_failed_but_the_same_is_better_than_none():
    assert chosen(requests_of({"a": candidate(previous="x")}), {"x": 5, "y": 1}) == {"a": "y"}
    assert chosen(requests_of({"a": candidate(previous="x")}), {"x": 5, "y": 0}) == {"a": "x"}


def test_an_agent_pod_with_an_outage_gets_at_most_one_probe():
    requests = requests_of({name: candidate(age=9 - number, model="m") for number, name in enumerate("abc")})
    other = requests_of({"other": candidate(model="n")})

    def choice(requests, **out):
        found = choose(requests, {"x": 5, "y": 1}, NOTHING, EQUAL, out=ModelsOut({(key, "m"): out[key] for key in out}))
        return {name: agent for (_, name), agent in found.items()}

    assert choice(requests, x=False) == {"a": "y"}
    assert choice(requests, x=True) == {"a": "x", "b": "y"}
    assert choice(requests, x=False, y=False) == {}
    assert choice(requests, x=True, y=False) == {"a": "x"}
    assert choice(other, x=False, y=False) == {"other": "x"}


def test_an_externally_driven_episode_needs_an_agent_pod_but_no_slot():
    requests = requests_of({"outside": candidate(needs_slot=False), "inside": candidate(age=1)})
    assert chosen(requests, {"full": 0}) == {"outside": "full"}
    assert chosen(requests, {}) == {}


@given(
    st.dictionaries(st.integers(0, 50), st.tuples(st.integers(-3, 3), st.integers(0, 9), st.booleans())),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 5)),
)
def test_all_free_slots_are_used_and_never_exceeded(requests, free):
    candidates = {
        str(key): candidate(priority, age, needs_slot=needs_slot)
        for key, (priority, age, needs_slot) in requests.items()
    }
    found = chosen(requests_of(candidates), free)
    used = [found[key] for key in found if candidates[key].needs_slot]
    assert all(used.count(agent) <= free[agent] for agent in used)
    inside = [key for key in order(requests_of(candidates)) if candidates[key].needs_slot]
    served = [key for key in inside if key in found]
    assert served == inside[: sum(free.values())]
    assert chosen(requests_of(candidates), free) == found


# Properties of all requests, usages and policies

NAMES = st.sampled_from(["a", "b", "c", "d"])
KEYS = st.tuples(NAMES, st.integers(0, 20).map(str))
CANDIDATES = st.builds(
    candidate,
    st.integers(-2, 2),
    st.integers(0, 5),
    needs_slot=st.booleans(),
    active=st.booleans(),
    index=st.integers(0, 9),
)
NUMBERS = st.dictionaries(NAMES, st.integers(0, 12))
USAGES = st.builds(lambda slots, active: NamespaceUsage(slots=slots, active=active), NUMBERS, NUMBERS)
POLICY = st.builds(
    lambda weight, bound: NamespacePolicy(weight=weight, max_active=bound),
    st.integers(1, 9),
    st.none() | st.integers(0, 12),
)
POLICIES = st.builds(
    lambda defaults, overrides: NamespacePolicies(defaults=defaults, overrides=overrides),
    POLICY,
    st.dictionaries(NAMES, POLICY),
)


def expected_order(candidates, slots, usage, policies, known=(), in_flight=(), limit=None):
    """Return the order by its definition: grant the best of all eligible candidates, one at a time."""
    left, used, active, granted = dict(candidates), Counter(usage.slots), Counter(usage.active), []
    pulled = set(in_flight)

    def may_pull(image):
        return limit is None or len(pulled) < limit or image in pulled or image in known

    def eligible(key):
        bound = policies.of(key[0]).max_active
        has_room = left[key].active or bound is None or active[key[0]] < bound
        return (slots > 0 or not left[key].needs_slot) and has_room and may_pull(left[key].image)

    def place(key):
        share = Fraction(used[key[0]], policies.of(key[0]).weight)
        return share, -left[key].priority, left[key].created, left[key].index, key[1], key[0]

    while ready := [key for key in left if eligible(key)]:
        best = min(ready, key=place)
        granted.append(best)
        needs_slot, was_active = left[best].needs_slot, left[best].active
        pulled |= {left[best].image} - set(known)
        del left[best]
        slots -= needs_slot
        used[best[0]] += needs_slot
        active[best[0]] += not was_active
    return granted


@given(st.dictionaries(KEYS, CANDIDATES), st.integers(-2, 30), USAGES, POLICIES)
def test_the_order_is_share_then_priority_then_age(candidates, slots, usage, policies):
    granted = list(Requests(candidates).in_turn(slots, usage, policies))
    assert granted == expected_order(candidates, slots, usage, policies)


IMAGES = st.sampled_from(["", "x", "y", "z"])
OF_IMAGES = st.builds(
    candidate, st.integers(-2, 2), st.integers(0, 5), needs_slot=st.booleans(), active=st.booleans(), image=IMAGES
)


@given(
    st.dictionaries(KEYS, OF_IMAGES),
    st.integers(-2, 30),
    USAGES,
    POLICIES,
    st.sets(IMAGES),
    st.sets(IMAGES),
    st.none() | st.integers(1, 3),
)
def test_images_that_must_be_pulled_wait_and_delay_no_others(
    candidates, slots, usage, policies, known, in_flight, limit
):
    in_flight -= known
    pulls = PullBudget(known, in_flight, limit)
    granted = list(Requests(candidates).in_turn(slots, usage, policies, pulls=pulls))
    assert granted == expected_order(candidates, slots, usage, policies, known, in_flight, limit)
    started = {candidates[key].image for key in granted} - known
    assert limit is None or len(started | in_flight) <= max(limit, len(in_flight))
    assert not pulls.refused & (started | known | in_flight)


@given(st.dictionaries(KEYS, CANDIDATES), st.integers(0, 30), USAGES, POLICIES, st.randoms())
def test_the_order_of_arrival_does_not_matter(candidates, slots, usage, policies, random):
    arrivals = list(candidates.items())
    random.shuffle(arrivals)
    again = Requests(candidates)
    for key, each in arrivals:
        again.put(key, candidate(priority=9))
        again.discard(key)
        again.put(key, each)
    expected = list(Requests(candidates).in_turn(slots, usage, policies))
    assert list(again.in_turn(slots, usage, policies)) == expected


@given(st.dictionaries(KEYS, CANDIDATES), st.integers(0, 30), USAGES, POLICIES)
def test_max_active_is_never_exceeded(candidates, slots, usage, policies):
    granted = list(Requests(candidates).in_turn(slots, usage, policies))
    started = Counter(key[0] for key in granted if not candidates[key].active)
    for namespace, count in started.items():
        bound = policies.of(namespace).max_active
        assert bound is None or usage.active.get(namespace, 0) + count <= bound


@given(st.dictionaries(NAMES, st.integers(1, 9), min_size=1), st.integers(0, 200))
def test_shares_follow_the_weights_within_one_grant(weights, slots):
    """All namespaces have enough waiting episodes."""
    policies = policies_of(**{name: {"weight": weight} for name, weight in weights.items()})
    requests = Requests({(name, str(number)): candidate() for name in weights for number in range(slots)})
    granted = Counter(key[0] for key in requests.in_turn(slots, NOTHING, policies))
    assert granted.total() == slots
    for one in granted:
        share = Fraction(granted[one] - 1, weights[one])
        assert all(share <= Fraction(granted[other], weights[other]) for other in weights)


@given(st.dictionaries(KEYS, CANDIDATES, min_size=1), st.integers(1, 5), POLICIES)
def test_every_candidate_is_granted_after_finitely_many_ends(candidates, slots, policies):
    """Slots end in the order of their grants. A grant needs a slot or room in its namespace."""
    for name in {key[0] for key in candidates}:
        assume(policies.of(name).max_active != 0)
    requests, running, ends = Requests(candidates), [], 0
    while len(requests):
        used = Counter(key[0] for key in running if candidates[key].needs_slot)
        usage = NamespaceUsage(slots=used, active=Counter(key[0] for key in running if not candidates[key].active))
        granted = list(requests.in_turn(slots - used.total(), usage, policies))
        for key in granted:
            requests.discard(key)
        running += granted
        assert running, "nothing runs, and nothing is granted"
        ends += 1
        running.pop(0)
        assert ends <= len(candidates)


@given(st.integers(0, 20), st.dictionaries(NAMES, st.integers(1, 5), min_size=1), NAMES, st.integers(1, 6), st.data())
def test_later_requests_do_not_starve_earlier_requests(ahead, weights, where, slots, data):
    """Younger episodes of the same priority arrive in any number and in any namespace."""
    weights.setdefault(where, 1)
    policies = policies_of(**{name: {"weight": weight} for name, weight in weights.items()})
    requests = Requests({(where, str(number)): candidate(age=ahead - number) for number in range(ahead + 1)})
    wanted, running, ends = (where, str(ahead)), [], 0
    while wanted in requests:
        for name in weights:
            for number in range(data.draw(st.integers(0, 2))):
                requests.put((name, f"later-{ends}-{number}"), candidate(age=-ends - 1))
        used = Counter(key[0] for key in running)
        for key in list(requests.in_turn(slots - len(running), NamespaceUsage(slots=used), policies)):
            requests.discard(key)
            running.append(key)
        running.pop(0)
        ends += 1
        assert ends <= (ahead + 2) * sum(weights.values()) + 2 * slots


def calls_of(function):
    """Return the number of function calls, including built-in functions. Other processes do not affect this measure."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_the_time_of_a_grant_does_not_depend_on_the_number_of_requests():
    def grant(waiting):
        requests = Requests({(f"team-{n % 10}", f"fix-{n}"): candidate(n % 3, n % 7) for n in range(waiting)})

        def one_end():
            (key,) = islice(requests.in_turn(1, NOTHING, EQUAL), 1)
            requests.discard(key)
            requests.put(key, candidate(1))

        return calls_of(one_end)

    few, many = grant(100), grant(10_000)
    assert many <= few + 20, (few, many)
    assert many < 500
