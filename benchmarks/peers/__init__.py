"""``peers``: the benchmark of record, our engines beside other packages on the same arrays.

``tables`` are the data, ``scripts`` has one short program per peer, ``child`` runs one of them in its own interpreter,
``environments`` makes the interpreters, ``scores`` judges what a child leaves, ``run`` is the group. The rows are in
docs/peers.md.
"""
