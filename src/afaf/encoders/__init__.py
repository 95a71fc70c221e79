"""Pre-trained, frozen encoders: from images to feature vectors."""
