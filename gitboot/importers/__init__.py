"""Write a fleet from the data of other systems, and compare what both boot."""
