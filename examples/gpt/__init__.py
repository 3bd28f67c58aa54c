"""What `train_gpt.py` is made of: the text, the model, its training, checkpoints, samples and the report."""
