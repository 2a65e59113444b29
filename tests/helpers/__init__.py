"""Helpers of tests: fleets, repositories, servers, BMCs, instances, and doubles of them."""
