"""Ask hosts for things and wait for their answers: Ray actors, and threads of this process that stand for them."""
