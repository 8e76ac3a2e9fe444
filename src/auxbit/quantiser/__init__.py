"""Codes for search by the decoder, which are not in the paper."""
