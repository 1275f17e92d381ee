"""The only code that touches single records."""
