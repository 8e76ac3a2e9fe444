"""The paper: binary autoencoders by the method of auxiliary coordinates, one idea per file."""
