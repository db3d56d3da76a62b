"""Which case of loop_cases.py makes which awaitable call of the package."""

from __future__ import annotations

from loop_cases import (
    Arrivals,
    Batches,
    BatchesInALoop,
    Case,
    Environments,
    Generates,
    Gets,
    GivenUp,
    Groups,
    Lives,
    Posts,
    Publishes,
    Pushes,
    Puts,
    Resends,
    Takes,
    TakesInALoop,
    Tensors,
    Transactions,
    Updates,
    UpdatesInABlock,
    UpdatesInALoop,
)

# The calls, by file and name, and the case that makes them.
TABLE: dict[type[Case], list[str]] = {
    Pushes: ["_producer.Producer.push_async"],
    Puts: ["extras.queue.RingQueue.aput"],
    Gets: ["extras.queue.RingQueue.aget"],
    Posts: ["extras.requests.RequestBoard.post_async"],
    GivenUp: ["extras.requests.RequestBoard.given_up_async"],
    Takes: ["extras.requests.RequestBoard.take_async"],
    TakesInALoop: ["extras.requests.RequestBoard.__aiter__"],
    Batches: ["_stash.Stash.next_async"],
    BatchesInALoop: ["_stash.Stash.__aiter__"],
    Groups: ["_stash.Stash.group"],
    Arrivals: ["_weight_publisher.WeightPublisher.wait_subscribers_async"],
    Lives: ["_weight_publisher.WeightPublisher.wait_live_async"],
    Publishes: [
        "_weight_publisher.WeightPublisher.publish_async",
        "_blocks.OneVersion.__aenter__",
        "_blocks.OneVersion.__aexit__",
    ],
    Transactions: [
        "_weight_transaction.WeightTransaction.put_async",
        "_weight_transaction.WeightTransaction.wait_staged_async",
        "_weight_transaction.WeightTransaction.decide_async",
        "_weight_transaction.WeightTransaction.commit_async",
    ],
    Resends: ["_weight_publisher.WeightPublisher.resend_async"],
    Updates: [
        "_weight_subscriber.WeightSubscriber.next_async",
        "_weight_update.WeightUpdate.load_async",
        "_weight_update.WeightUpdate.stage_async",
        "_weight_update.WeightUpdate.wait_committed_async",
        "_weight_update.WeightUpdate.adopt_async",
    ],
    UpdatesInALoop: [
        "_weight_subscriber.WeightSubscriber.__aiter__",
        "_weight_update.WeightUpdate.finish_async",
    ],
    UpdatesInABlock: [],
    Tensors: ["_weight_update.WeightUpdate.tensors_async"],
    Generates: ["integrations.skyrl.RollringGenerator.generate"],
    Environments: ["integrations.atropos.RollringSendMixin._send_scored_data_to_api"],
}

# Coroutines that no second event loop comes to.
ELSEWHERE = {
    "_group_waits.GroupWaits.group": "what Stash.group is",
    "relay.PartReader.take_async": "relays alone have it, in one loop",
    "relay.PartWriter.lend_async": "the same",
    "_waits.readable": "what the calls of the table wait with",
    "_waits.in_thread": "the first aput of a process: a thread's answer",
    "_turns.Turn.__aenter__": "the same as readable",
    "_turns.Turn.__aexit__": "the same",
    "integrations.transfer_queue.RollringManager.get_data": "blocks: nothing of it is awaited",
    "integrations.transfer_queue.RollringManager.clear_data": "the same",
    "integrations.skyrl._workers.serve_async": "makes all that it uses, and ends it",
    "integrations.ray._connect.NodeProducer.push_async": "Ray's answers, then Producer's",
    "integrations.verl.RollringCheckpointEngine.send_weights": "a whole version, in one loop",
    "integrations.areal._rtensor.RTensorBackend.delete": "a thread's answer, then AReaL's own",
    "integrations.verl.RollringCheckpointEngine.receive_weights": "the same",
}
# Actors of Ray have one event loop, which ends with them.
ACTORS = (
    "integrations.ray._fabric",
    "integrations.ray._forwarder",
    "integrations.ray._lane",
    "integrations.ray._receiver",
    "integrations.ray._weight_",
)
