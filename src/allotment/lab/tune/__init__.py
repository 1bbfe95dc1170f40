"""Finds the best settings for a recorded run.

`candidates` are the settings to try, `search` tries them by replay.
"""
