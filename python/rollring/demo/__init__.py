"""A ring, producers and a trainer in one go, all of it in Python: ``python -m rollring.demo``.

Read `sides` first: `produce` is what a rollout worker does, and `train` what a trainer does. The
rest is there to look after processes, and to prove that what was sent has come.
"""
