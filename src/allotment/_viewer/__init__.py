"""Pictures of memory. Computes nothing about it: that is the lab's business."""
