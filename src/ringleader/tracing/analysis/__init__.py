"""Pure functions from recorded events to the parts of a step, table and file."""
