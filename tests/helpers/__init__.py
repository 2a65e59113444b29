"""What tests share: fleets, repositories, servers, BMCs, instances, and doubles of them."""
