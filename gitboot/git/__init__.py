"""Git: fetch, read and write repositories, and verify signatures."""
