"""The ring of a node, which its forwarder and its weights' relay share."""

from __future__ import annotations

from ... import Column, create
from ._names import About, node_ring


def make_node_ring(about: About, node: str) -> str:
    """Makes it where there is none. Returns its name."""
    name = node_ring(about.ring, about.ring_id, node)
    options = dict(about.create)
    columns = {
        one: Column(dtype, per="token" if per_token else "record", dims=tuple(dims))
        for one, dtype, per_token, dims in options.pop("columns")
    }
    create(name, **options, columns=columns, exist_ok=True)
    return name
