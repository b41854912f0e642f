"""The dashboard: numbers that scripts log, the state of the page, its web server."""
