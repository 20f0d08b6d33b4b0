"""Data sets and their splits, batches, augmentation, and the decoding and preprocessing of images."""
