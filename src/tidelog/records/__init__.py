"""Record batches (v2): their header, their records, compression, and the kernel that touches single records."""
