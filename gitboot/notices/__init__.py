"""Notices: what an instance did and found, sent to whom a person has named, by webhook or by what apprise knows."""
