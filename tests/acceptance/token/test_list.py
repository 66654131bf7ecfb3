"""opsq token list: names and roles, never a token."""


def test_names_and_roles_are_listed(opsq):
    token = opsq.ok("token", "create", "etl", "--role", "producer,read-only").text
    opsq.ok("token", "create", "ops", "--role", "operator")
    listed = opsq.ok("token", "list")
    assert [line.split("\t")[:2] for line in listed.lines] == [["etl", "producer,read-only"], ["ops", "operator"]]
    assert token not in listed.text
    documents = opsq.ok("token", "--json").json["tokens"]
    assert [(each["name"], each["roles"]) for each in documents] == [
        ("etl", ["producer", "read-only"]),
        ("ops", ["operator"]),
    ]


def test_no_tokens_is_an_empty_list(opsq):
    assert opsq.ok("token", "list").out == b""
    assert opsq.ok("token", "list", "--json").json == {"tokens": []}
