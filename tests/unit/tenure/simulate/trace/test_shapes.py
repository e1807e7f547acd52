import pytest

from tenure.simulate.trace.shapes import (
    CARD_MEMORY_MIB,
    NODE_SHAPES,
    POD_SHAPES,
    scaled_node_shapes,
)


def test_the_node_table_adds_up_to_the_published_cluster() -> None:
    """1,213 nodes with 6,212 GPUs, as the FGD paper's trace has."""
    assert sum(shape.count for shape in NODE_SHAPES) == 1213
    assert sum(shape.count * shape.gpus for shape in NODE_SHAPES) == 6212
    assert {shape.model for shape in NODE_SHAPES} == CARD_MEMORY_MIB.keys()


def test_the_pod_table_covers_the_typical_pods() -> None:
    """The most frequent shapes cover at least 95 % of the 8,152 Pods."""
    assert sum(shape.count for shape in POD_SHAPES) / 8152 > 0.95


@pytest.mark.parametrize("nodes", [1, 7, 204, 1213, 14556])
def test_a_scaled_cluster_has_exactly_the_nodes_asked_for(nodes: int) -> None:
    """Largest remainder never loses or adds a node."""
    assert len(scaled_node_shapes(nodes)) == nodes


def test_the_published_size_gives_the_published_proportions() -> None:
    """At 1,213 nodes scaling changes nothing."""
    shapes = scaled_node_shapes(1213)

    assert [shapes.count(shape) for shape in NODE_SHAPES] == [shape.count for shape in NODE_SHAPES]
