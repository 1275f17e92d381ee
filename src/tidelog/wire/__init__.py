"""Kafka's protocol: a schema language, the declarations of all messages, and the codecs compiled from them."""
