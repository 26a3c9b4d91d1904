"""Device groups as processes: workers, their links, and the coordinator that watches them."""
