"""A ring, producers and a trainer in one go, all of it in Python: ``python -m rollring.demo``.

Read `sides` first: `produce` is the work of a rollout worker, and `train` that of a trainer. The
rest looks after processes, and proves that every record sent has arrived.
"""
