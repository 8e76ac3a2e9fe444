"""The web page and the HTTP API of a collection of pictures."""
