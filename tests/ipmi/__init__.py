"""BMCs that speak IPMI: pyghmi's server, with boot flags as IPMI 2.0 has them, and OpenIPMI's simulator."""
