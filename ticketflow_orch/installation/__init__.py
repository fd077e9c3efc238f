"""What decides about money in an installation, how it is changed, and the delivery that its processes agree on."""
