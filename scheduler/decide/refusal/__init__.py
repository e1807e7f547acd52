"""Why no node takes a Pod: the first stage that fails on each, in the field's words, counted."""
