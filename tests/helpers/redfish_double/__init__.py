"""A Redfish double that behaves as real BMCs do: machines that boot, over real HTTP and HTTPS.

`profiles` describes how vendors differ, `machine` is the state of one machine and its BMC, `server` the HTTP(S)
server with sessions, and with faults on demand. `python -m tests.helpers.redfish_double` runs it for a demonstration.
"""
