"""Git: fetch, read, verify and write repositories."""
