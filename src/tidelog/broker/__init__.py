"""The broker process: handlers, partitions, purgatory, metadata, and the shell of the controller."""
