"""Other places that hold what machines fetch: branches, buckets and folders that follow the published directory.

The directory is the truth, and the endpoints' own. A target holds of it what a plain file server may serve, and follows
it in a thread of its own: it may lag, be down, or be restarted, and slows down nothing.
"""
