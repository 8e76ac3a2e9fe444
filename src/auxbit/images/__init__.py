"""A folder of pictures as a collection."""
