"""The OpenAPI document is valid, and says of each endpoint what it takes, whom it serves, and how it fails."""

import openapi_spec_validator
import pytest

from opsq.gateway.api.door import ENDPOINTS, openapi

DOCUMENT = openapi()
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]


def test_document_is_valid_openapi():
    openapi_spec_validator.validate(DOCUMENT)
    assert len(OPERATIONS) == len(ENDPOINTS)


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_each_operation_is_described(name, operation):
    assert operation["summary"].endswith(".")
    assert operation["x-opsq-roles"]
    assert {"400", "401", "403", "503"} <= operation["responses"].keys()
    assert all(each["description"] or each["in"] == "path" for each in operation["parameters"]), name
    assert [each["name"] for each in operation["parameters"] if each["in"] == "path"] == [
        part.strip("{}") for part in name.split("/") if part.startswith("{")
    ]


def test_names_of_operations_are_unique():
    names = [operation["operationId"] for _, operation in OPERATIONS]
    assert len(names) == len(set(names))


def test_patterns_are_those_of_ecma():
    def patterns(part):
        if isinstance(part, dict):
            yield from (each for name, each in part.items() if name == "pattern" and isinstance(each, str))
            part = list(part.values())
        if isinstance(part, list):
            for each in part:
                yield from patterns(each)

    found = list(patterns(DOCUMENT))
    assert found
    assert not any(r"\Z" in each for each in found)
