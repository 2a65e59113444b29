"""Two commits' decisions -> what changed, for whom, how dangerous it is and when it takes effect: values only."""
