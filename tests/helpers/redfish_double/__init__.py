"""A Redfish double that behaves as real BMCs do: machines that boot, over real HTTP and HTTPS.

`profiles` says how vendors differ, `double` is the state of one machine and its BMC, `faults` what can go
wrong on demand, `server` the HTTP(S) server. `python -m tests.helpers.redfish_double` runs it for a demonstration.
"""
