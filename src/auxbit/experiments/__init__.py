"""Experiments as plain functions: tables in, tables out; the command line prints and plots them."""
