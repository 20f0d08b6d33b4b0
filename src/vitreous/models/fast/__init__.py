"""The same ViT in less time on a CPU. Each part equals the readable model in outputs and gradients, by test.

- `vit.FastViT`: what `build` returns. Attention is chosen by geometry; the last block computes only the class token.
- `dropout.Dropout`: torch's, with a mask that is drawn faster (the same distribution, other numbers).
- `inference.infer`: logits without gradients, a whole encoder layer per call.
- `split_batch.SplitBatch`: half of a batch on each of two threads, in training and in inference.
"""
