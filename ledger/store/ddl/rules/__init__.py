"""What both databases refuse: a table of rules, one text for both. It knows neither database."""
