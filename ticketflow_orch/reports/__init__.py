"""What people read about months, organizations and effects."""
