"""auxbit inside other frameworks, one file each, imported on use."""
