"""A page of a run's rollouts in the browser: ``rollring view RING|FILE``, or
``python -m rollring.view RING|FILE``.

It reads a ring through a `rollring.tap.Tap`, and takes no part in its run.
"""
