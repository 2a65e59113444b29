"""Write a fleet from the data of another provisioning system, and compare what both boot."""
