"""A live page of a ring in the terminal: ``rollring top NAME``, or ``python -m rollring.top NAME``.

It needs textual: ``pip install textual``. It looks at the ring from outside and takes no
part.
"""
