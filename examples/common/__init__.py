"""What the example tasks share: the shape of a task, a tokenizer, pre-training and sampling. The product imports none of it."""
