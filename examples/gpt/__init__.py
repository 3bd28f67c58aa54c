"""The parts of `train_gpt.py`: the text, the model, its training, checkpoints, samples and the report."""
