"""What the sources of the console know of the server is what the server that is here has."""

import re

from tests.console.browser import CONSOLE
from tools import client_types
from topics.model.requests.config import TopicConfig

# Said by `durability` as well, and kept for old clients.
NOT_SHOWN = {"durable"}


def test_the_types_are_those_of_the_openapi_document() -> None:
    made = client_types.render(client_types.document())
    assert made == client_types.TARGET.read_text(), "run: .venv/bin/python tools/client_types.py"


def test_every_field_of_a_configuration_is_explained() -> None:
    page = (CONSOLE / "src" / "pages" / "topic" / "configuration.tsx").read_text()
    explained = re.findall(r'{ name: "(\w+)", .*help: "[A-Z−][^"]{15,}"', page)
    assert set(explained) == set(TopicConfig.__struct_fields__) - NOT_SHOWN
