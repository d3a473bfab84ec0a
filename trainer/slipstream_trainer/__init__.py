"""GRPO on LoRA, from what the proxy captured.

Arrays and tensors name their axes in a suffix of capitals, one letter an axis: ``hidden_SH`` is (S, H).

    T   trained tokens of a batch, over all its micro-batches
    E   episodes of a group
    P   tokens of a call's prompt
    C   tokens of a call's completion
    L   tokens of a chain: calls of an episode that continue each other
    N   places of a row, or nodes of a tree of chains
    R   rows of a micro-batch
    B   blocks of N, which FlexAttention computes or leaves out
    K   places of such a block
    S   scored positions of a micro-batch; each belongs to one of T
    W   tokens of T about which a user said something
    H   the model's hidden size
    V   the model's vocabulary
"""
