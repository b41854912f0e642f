"""Engines that move chunks over links, and the parts that they share."""
