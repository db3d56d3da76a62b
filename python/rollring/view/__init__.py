"""A page of a run's rollouts in the browser: ``rollring view RING|FILE|LEDGER``, or
``python -m rollring.view RING|FILE|LEDGER``.

It reads a ring through a `rollring.tap.Tap`, and takes no part in its run.
"""
