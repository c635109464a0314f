"""The client's types are those of the server that is here."""

from tools import client_types


def test_the_types_are_those_of_the_openapi_document() -> None:
    made = client_types.render(client_types.document())
    assert made == client_types.TARGET.read_text(), "run: .venv/bin/python tools/client_types.py"
