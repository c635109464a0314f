"""Requests that the server sends."""
