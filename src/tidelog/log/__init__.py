"""One partition on disk, in Kafka's directory format (S10)."""
