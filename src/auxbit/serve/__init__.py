"""The web page and the HTTP API of a collection of pictures."""

from auxbit.core.checks import require

require("fastapi", extra="web", purpose="the web page")  # every module here imports it
