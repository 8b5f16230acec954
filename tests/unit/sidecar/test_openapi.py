"""Tests of docs/openapi.json: it describes the routes of the sidecar, and an independent validator accepts it."""

import importlib.util
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

from dgym.sidecar._api import Api
from dgym.wire.http import ErrorCode

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def document():
    return json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("openapi", ROOT / "hack" / "openapi.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def operations(document):
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def test_the_document_is_valid(document):
    OpenAPIV31SpecValidator(document).validate()


def test_a_response_without_a_description_is_not_valid(document):
    paths = {"/": {"get": {"responses": {"200": {}}}}}
    with pytest.raises(OpenAPIValidationError, match="description"):
        OpenAPIV31SpecValidator({**document, "paths": paths, "components": {}}).validate()


def test_the_document_is_up_to_date(writer):
    assert writer.main(["--check"]) == 0


def test_the_document_has_exactly_the_routes_of_the_application(writer):
    application = Api(Mock()).application()
    served = {
        (route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.method not in ("HEAD", "*")
    }
    assert operations(writer.document()) == served


def test_every_error_is_one_of_some_call(writer):
    text = json.dumps(writer.document()["paths"])
    unanswered = {ErrorCode.NOT_FOUND}  # the document has no such path
    for code in set(ErrorCode) - unanswered:
        assert code.value in text
