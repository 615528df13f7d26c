"""Planning: whether a layout fits a machine, and how fast it could be, before either is had."""
