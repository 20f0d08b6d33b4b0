"""Images in: data sets and their splits, batches, augmentation, and the guarded decoding of a person's own images."""
