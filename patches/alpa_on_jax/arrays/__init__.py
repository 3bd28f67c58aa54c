"""Arrays on devices and in checkpoints, as every mesh and every host uses them."""
