"""The method of auxiliary coordinates, one idea of the paper a file."""
