"""Code that runs in user processes: starts an agent and joins training rounds."""
