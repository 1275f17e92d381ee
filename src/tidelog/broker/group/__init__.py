"""The group coordinator: the rules of tidelog.groups, on the partitions of __consumer_offsets that are led here."""
