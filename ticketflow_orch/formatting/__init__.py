"""Values as people read them, and the files that they are written to."""
