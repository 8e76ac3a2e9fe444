"""Vectors and pictures from files: readers, slices of rows, data sets, GIST."""
