"""Valid and invalid requests, generated from the OpenAPI description, are answered as described."""

import itertools

import pytest
import requests
from hypothesis import HealthCheck, given, settings

from rollax.serving.openapi import description
from rollax.serving.service import Service
from tests.serving.stand_in_backend import StandIn
from tests.serving.wire import PATIENCE_S, TOKEN, serving

_EXAMPLES = 50

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def operations():
    """Label -> operation; Schemathesis takes a second to import, so only the test that needs it does."""
    import schemathesis

    found = [operation.ok() for operation in schemathesis.openapi.from_dict(description()).get_all_operations()]
    assert {operation.label for operation in found} == {label for label, _ in ATTACKS}
    return {operation.label: operation for operation in found}


@pytest.fixture(scope="module")
def session():
    """A session whose `base_url` is that of a server with a token."""
    with serving(Service(StandIn()), token=TOKEN) as server, requests.Session() as found:
        found.headers["Authorization"] = f"Bearer {TOKEN}"
        found.base_url = server.address
        yield found


def _modes(operation):
    """A request without a body and parameters cannot be invalid."""
    return ["positive", "negative"] if {"requestBody", "parameters"} & operation.keys() else ["positive"]


ATTACKS = [
    (f"{method.upper()} {path}", mode)
    for path, methods in description()["paths"].items()
    for method, operation in methods.items()
    for mode in _modes(operation)
]


@pytest.mark.parametrize(("label", "mode"), ATTACKS)
def test_generated_requests_are_answered_as_described(session, operations, label, mode):
    from schemathesis import GenerationMode, checks

    operation, mode = operations[label], GenerationMode(mode)
    count = itertools.count()
    demanded = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
        *([checks.negative_data_rejection] if mode == GenerationMode.NEGATIVE else []),
    ]

    @settings(
        max_examples=_EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case):
        number = next(count)
        if mode == GenerationMode.POSITIVE and number % 2 and isinstance(case.body, dict) and "episode_id" in case.body:
            run_an_episode(session, case, number)
        case.call_and_validate(base_url=session.base_url, session=session, checks=demanded, timeout=PATIENCE_S)

    attack()


def run_an_episode(session, case, number):
    """Changes a generated request to one for a running episode, with an observation of its space."""
    name = f"{case.operation.label}-{number}".replace("/", "-")
    if "start_episode" not in case.operation.label:
        answer = session.post(f"{session.base_url}/v1/start_episode", json={"episode_id": name}, timeout=PATIENCE_S)
        assert answer.status_code == 200
    case.body["episode_id"] = name
    if "obs" in case.body:
        case.body["obs"] = [0.5, -0.5]
