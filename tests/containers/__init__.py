"""`make test-containers`: the images, and the composition as containers."""
