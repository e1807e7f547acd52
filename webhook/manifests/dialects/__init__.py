"""Policies in CEL that single dialects need. They read no file and call no API."""
