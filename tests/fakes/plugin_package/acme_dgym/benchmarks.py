"""Tickets of ours as a benchmark."""

from dgym.api import Evaluation
from dgym.benchmarks.datasets import Adapter, Fields, Row


class Tickets(Adapter):
    """As docs/writing-an-adapter.md shows it."""

    name = "tickets"
    summary = "Tickets of ours"

    def row(self, data, images):
        fields = Fields(data)
        return Row(
            instance=fields.text("instance_id"),
            instructions=fields.text("text"),
            image=images.name(None, "registry.example/tickets/{{ id }}", {"id": fields.text("instance_id")}),
            repository="acme/shop",
            revision=fields.text("commit"),
            evaluation=Evaluation(script="pytest -rA\n", fail_to_pass=fields.names("tests")),
            solution=fields.optional("patch"),
        )
