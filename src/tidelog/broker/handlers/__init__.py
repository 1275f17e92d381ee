"""What a broker does for each kind of request, a module per API family."""
