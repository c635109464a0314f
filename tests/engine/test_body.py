"""Bodies of blocks: what a batch of many different nodes costs."""

from array import array

from topics.engine.log.body import Body
from topics.model.requests.batch import Batch

NODES = 2_000


class Node(str):
    """A node's name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Node.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def batch_of(nodes: int) -> Batch:
    batch = Batch(1, 1, nodes, b"{}" * nodes, array("I", range(2, 2 * nodes + 2, 2)))
    batch.node_names, batch.nodes = [Node(f"n{number}") for number in range(nodes)], array("I", range(1, nodes + 1))
    return batch


def test_every_record_may_have_a_node_of_its_own_at_a_linear_cost() -> None:
    body = Body()
    Node.compared = 0
    body.extend(batch_of(NODES))
    body.extend(batch_of(NODES))
    assert Node.compared < 10 * NODES
    assert body.nodes is not None
    assert [body.node_names[number - 1] for number in body.nodes] == [f"n{i}" for i in range(NODES)] * 2
    assert len(body.node_names) == NODES
