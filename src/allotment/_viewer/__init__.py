"""Draws pictures of memory. The lab computes what they show."""
