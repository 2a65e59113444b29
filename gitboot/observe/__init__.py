"""What machines fetched: the spool of endpoints, and access logs of mirrors."""
