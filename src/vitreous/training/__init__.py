"""Training: one loop for scratch, fine-tuning, resume and many processes."""
