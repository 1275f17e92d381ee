"""All messages of Kafka 3.9.1 and 4.1.0, a module per family. Generated."""
