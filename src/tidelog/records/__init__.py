"""Record batches (v2): their header, their records, compression, and the kernel that touches single records.

Three layers. header.py and scan.py see 61 bytes of a batch and its CRC: all that followers and fetches need.
The compiled modules see single records: kernel.py reads them, record_walk.py checks them for a leader, columns.py reads
them into Arrow's layout, encoder.py and column_source.py write them, offset_map.py compacts them; each is one source
that also runs as plain Python, and its .pyi is what type checkers see. On top are whole batches: batch.py reads,
build.py makes, validate.py checks before an append, lookups.py searches by time, control.py knows transaction markers,
compaction.py thins out.
"""
