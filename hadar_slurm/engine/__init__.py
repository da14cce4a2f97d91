"""The one scheduling loop, and the difference between what is and what should be."""
