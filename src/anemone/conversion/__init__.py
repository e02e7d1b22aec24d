"""From a checkpoint to a bundle: the plan, the parts, the order of work."""
